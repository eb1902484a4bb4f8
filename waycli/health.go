package waycli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// healthTimeout exceeds the time after which a loop that stands still is reported.
const healthTimeout = stuckAfter + 5*time.Second

func (c *cli) healthCommand() *cobra.Command {
	var at string
	var ready bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask a relay or worker process whether it is healthy",
		Long: `Ask the admin listener of a process, which relay, consume and run have with
--admin-listen or admin.listen in the configuration, whether its loops move; with --ready,
whether its database and brokers answer and it is not about to stop. It is a probe for
containers that have no curl.

Exit codes: 0 yes, 1 no, or nothing answers.

With --json: {"url", "ok", "status", "parts"}, the last one as lines of text.`,
		Example: `  waybill health
  waybill health --ready --url http://127.0.0.1:9090`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.health(ctx, at, ready) }),
	}
	cmd.Flags().StringVar(&at, "url", "", "address of the listener (default: admin.listen, on this machine)")
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether it is ready, too")
	return cmd
}

func (s *session) health(ctx context.Context, at string, ready bool) error {
	if at == "" {
		cfg, err := s.config()
		if err != nil {
			return err
		}
		if at = adminOf(cfg); at == "" {
			return &Error{Usage, errors.New("there is no listener to ask"), "set admin.listen in the configuration, or give --url http://127.0.0.1:9090"}
		}
	}
	base, err := url.Parse(at)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return &Error{Usage, fmt.Errorf("--url: not the URL of a listener"), "such as http://127.0.0.1:9090"}
	}
	page := base.JoinPath("healthz")
	if ready {
		page = base.JoinPath("readyz")
		page.RawQuery = "verbose"
	}
	status, text, err := ask(ctx, page.String())
	if err != nil {
		return &Error{0, fmt.Errorf("nothing answers: %w", err), "see that the process runs with --admin-listen, and at which address: it logs that as \"health and metrics\""}
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if s.flags.json {
		s.stdout.json(struct {
			URL    string   `json:"url"`
			OK     bool     `json:"ok"`
			Status int      `json:"status"`
			Parts  []string `json:"parts"`
		}{page.Redacted(), status == http.StatusOK, status, lines})
	} else {
		for _, line := range lines {
			s.stdout.line("%s", visible(line))
		}
	}
	if status != http.StatusOK {
		return fmt.Errorf("%s answers %d", page.Redacted(), status)
	}
	return nil
}

// ask gets a page of at most 64 KiB.
func ask(ctx context.Context, page string) (status int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	return res.StatusCode, string(body), err
}
