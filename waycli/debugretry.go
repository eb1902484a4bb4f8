package waycli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/config"
)

func (c *cli) debugRetryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "retry [TRANSPORT...]",
		Short: "Print when a worker retries a failed message of each transport",
		Long: `Print when a worker retries a failed message of each transport, or of those given:
the delay before each retry, without jitter, the outage that all together cover, and
what becomes of a message that fails after them. (A server that cannot be reached is
no failure, and is waited for.)

With --json: {"transports": [{"transport", "delays_seconds", "covers_seconds",
"jitter", "on_exhausted", "failure_transport", "store"}]}.`,
		Example:           `  waybill debug retry orders`,
		RunE:              c.run(func(_ context.Context, s *session, args []string) error { return s.debugRetry(args) }),
		ValidArgsFunction: c.completeFrom(transportNames),
	}
}

// retryPlan is the JSON output of debug retry, for one transport.
type retryPlan struct {
	Transport        string             `json:"transport"`
	Delays           []float64          `json:"delays_seconds"`
	Covers           float64            `json:"covers_seconds"`
	Jitter           float64            `json:"jitter"`
	OnExhausted      config.OnExhausted `json:"on_exhausted"`
	FailureTransport string             `json:"failure_transport"`
	Store            string             `json:"store"` // without its password

	delays []time.Duration
}

func (s *session) debugRetry(names []string) error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = transportNames(cfg)
	}
	plans := make([]retryPlan, len(names))
	for i, name := range names {
		t, err := s.transport(name)
		if err != nil {
			return err
		}
		p := retryPlan{
			Transport: name, Delays: []float64{}, Covers: t.Retry.Window().Seconds(), Jitter: t.Retry.Jitter,
			OnExhausted: cmp.Or(t.OnExhausted, config.Park), FailureTransport: cfg.FailureTransportOf(name), Store: cfg.StoreOf(name).String(),
			delays: t.Retry.Delays(),
		}
		for _, d := range p.delays {
			p.Delays = append(p.Delays, d.Seconds())
		}
		plans[i] = p
	}
	if s.flags.json {
		s.stdout.json(map[string]any{"transports": plans})
		return nil
	}
	tableOf(s.stdout, []string{"TRANSPORT", "RETRIES AFTER", "COVERS", "ON EXHAUSTED", "FAILURE TRANSPORT", "STORE"}, plans, func(p retryPlan) []any {
		covers := config.FormatDuration(time.Duration(p.Covers * float64(time.Second)))
		return []any{p.Transport, delaysText(p.delays), covers, p.OnExhausted, p.FailureTransport, p.Store}
	})
	return nil
}

// delaysText returns delays such as "1s 3s 9s 5m (x7)".
func delaysText(delays []time.Duration) string {
	if len(delays) == 0 {
		return "none"
	}
	var parts []string
	for len(delays) > 0 {
		n := slices.IndexFunc(delays, func(d time.Duration) bool { return d != delays[0] })
		if n < 0 {
			n = len(delays)
		}
		part := config.FormatDuration(delays[0])
		if n > 1 {
			part += fmt.Sprintf(" (x%d)", n)
		}
		parts, delays = append(parts, part), delays[n:]
	}
	return strings.Join(parts, " ")
}
