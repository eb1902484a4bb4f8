package waycli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
)

// dashboardFlags are the flags of dashboard.
type dashboardFlags struct {
	listen, users, prefix string
	readOnly              bool
	headers, paths        []string
	proxyHeader           string
	proxyFrom             []string
}

func (c *cli) dashboardCommand() *cobra.Command {
	var f dashboardFlags
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a web page of the outbox, dead letters, retries and the inbox",
		Long: `Serve a web page of the configured database: its state in words, the outbox with its
blocked keys, dead letters by kind of error with retry, edit and remove, retry
queues, the inbox and the audit. It prints its address, and ends with SIGINT or
SIGTERM. It works without JavaScript, and loads nothing from another host.

Without --users it answers requests from this machine only, with all rights, and
refuses to listen at any other address than 127.0.0.1, ::1 or localhost. --users
names a file of one user a line, NAME:HASH:ROLE, the hash by bcrypt ("htpasswd -nB
NAME" prints NAME:HASH). In place of a hash sha256=SUM is a user whose requests have a
bearer token with that SHA-256 sum (printf %s TOKEN | sha256sum), and proxy one who
comes through a proxy only: --proxy-header names the header in which it has the name of
the user, which is believed of connections from --proxy-from alone. Role is viewer
(reads), operator (retries, edits and releases) or admin (removes, stops workers and
pauses transports, too); viewer+bodies and so on sees headers and bodies of messages.
Put a proxy with TLS in front of an address that others reach.

--read-only refuses every change, and its sessions of the database are read-only.
--redact-header and --redact-path hide values of headers, and of fields of JSON
bodies (card.number, items.*.token), from everyone; both may be repeated.

With --json: {"url"}, when it listens.`,
		Example: `  waybill dashboard
  waybill dashboard --listen 0.0.0.0:8080 --users users.txt --read-only`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.dashboard(ctx, f) }),
	}
	p := cmd.Flags()
	p.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address to listen at; port 0 takes a free one")
	p.StringVar(&f.users, "users", "", "file of users, NAME:HASH:ROLE a line")
	p.StringVar(&f.proxyHeader, "proxy-header", "", "header in which a proxy has the name of the user")
	p.StringArrayVar(&f.proxyFrom, "proxy-from", nil, "addresses of proxies, such as 10.0.0.5 or 10.0.0.0/8; may be repeated")
	p.StringVar(&f.prefix, "prefix", "", "path of the pages, such as /waybill")
	p.BoolVar(&f.readOnly, "read-only", false, "refuse every change")
	p.StringArrayVar(&f.headers, "redact-header", nil, "header whose value is hidden")
	p.StringArrayVar(&f.paths, "redact-path", nil, "field of JSON bodies whose value is hidden")
	return cmd
}

func (s *session) dashboard(ctx context.Context, f dashboardFlags) error {
	cfg, err := s.dashboardConfig(ctx, f)
	if err != nil {
		return err
	}
	pages, err := dashboard.New(cfg)
	if err != nil {
		return &Error{Usage, err, s.app.Name + " dashboard --help describes the flags"}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return &Error{Usage, fmt.Errorf("--listen: %w", err), "choose another address, such as 127.0.0.1:8081"}
	}
	url := fmt.Sprintf("http://%s%s/", listener.Addr(), f.prefix)
	if s.flags.json {
		s.stdout.json(map[string]any{"url": url})
	} else {
		s.stdout.line("%s", url)
	}
	return errors.Join(serve(ctx, listener, pageServer(pages), 5*time.Second), pages.Close())
}

// dashboardConfig returns the configuration of the dashboard that f asks for.
func (s *session) dashboardConfig(ctx context.Context, f dashboardFlags) (cfg dashboard.Config, err error) {
	var usage *Error
	if cfg.Authenticate, err = f.authenticate(); errors.As(err, &usage) {
		return cfg, err
	} else if err != nil {
		return cfg, &Error{Usage, err, "one user a line: NAME:HASH:ROLE, the hash by bcrypt, as of `htpasswd -nB NAME`"}
	}
	s.readOnly = f.readOnly
	if _, _, err := net.SplitHostPort(f.listen); err != nil {
		return cfg, &Error{Usage, fmt.Errorf("--listen: %w", err), "HOST:PORT, such as 127.0.0.1:8081"}
	}
	if err := dashboard.ListenAllowed(f.listen, cfg.Authenticate != nil); err != nil {
		return cfg, &Error{Refused, fmt.Errorf("--listen: %w", err), "give it --users, or listen at 127.0.0.1"}
	}
	stores, err := s.stores(ctx) // opens what findings read
	if err != nil {
		return cfg, err
	}
	if len(stores) > 1 {
		s.say("the dead letters and retries of %s: --database shows them", plural(len(stores)-1, "further store"))
	}
	if cfg.Database, err = s.database(ctx); err != nil {
		return cfg, err
	}
	settings, err := s.settings()
	if err != nil {
		return cfg, err
	}
	for _, row := range settings {
		cfg.Settings = append(cfg.Settings, dashboard.Setting{Key: row[0].(string), Value: row[1].(string), From: row[2].(string)})
	}
	var one sync.Mutex // a session is of one goroutine
	cfg.Findings = func(ctx context.Context) ([]admin.Finding, error) {
		one.Lock()
		defer one.Unlock()
		return s.findings(ctx)
	}
	cfg.Command, cfg.Title, cfg.Prefix, cfg.ReadOnly, cfg.Log = s.app.Name, s.app.Name, f.prefix, f.readOnly, s.log
	cfg.FailureTransport = s.cfg.FailureTransportOf
	cfg.Redact = dashboard.Redaction{Headers: f.headers, Paths: f.paths}
	return cfg, nil
}

// pageServer returns the HTTP server of pages for people and of probes.
func pageServer(h http.Handler) *http.Server {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // broken connections of browsers
	return server
}

// serve answers requests until ctx ends, and then those begun, for a time.
func serve(ctx context.Context, listener net.Listener, server *http.Server, drain time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err := server.Shutdown(last)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	<-ended
	return err
}
