package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// A Database is the part of a database that a dashboard shows and changes. Those of waypg,
// waymysql and waysqlite have it. Further abilities,
// such as admin.Examiner, are found by their methods.
type Database interface {
	admin.Database
	admin.Retries
	admin.DeadLetters
}

// Config is the configuration of a Dashboard. Only Database is required.
type Config struct {
	// Database is shown and changed.
	Database Database
	// Title is the name on each page. Empty means "waybill".
	Title string
	// Prefix is the path at which the dashboard is mounted, such as "/waybill". Empty means
	// the root.
	Prefix string
	// Command is the name of the binary in commands to copy. Empty means "waybill".
	Command string
	// Authenticate returns the user of a request. Nil means that every request from this
	// machine has all rights, and others have none.
	Authenticate Authenticate
	// FailureTransport returns the name under which a parked message of a transport is kept when
	// it becomes a dead letter, as in the worker.Config of the workers. Nil means "failed".
	FailureTransport func(transport string) string
	// ReadOnly refuses every change.
	ReadOnly bool
	// Redact are the contents of messages that no page shows.
	Redact Redaction
	// Findings returns the defects to show. Nil means those of Database.
	Findings func(ctx context.Context) ([]admin.Finding, error)
	// Settings are shown as the configuration; they must hold no secrets.
	Settings []Setting
	// Log is the log of errors and changes. Nil discards.
	Log *slog.Logger
}

// A Setting is a line of the configuration.
type Setting struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"` // where it is set
}

const (
	// queryTimeout bounds the queries of one page.
	queryTimeout = 3 * time.Second
	// connections bounds the queries of pages that run at once, and so the connections in use;
	// counts and releases have one more each.
	connections = 2
)

// A Dashboard is the http.Handler. Its methods may be called concurrently.
type Dashboard struct {
	cfg        Config
	db         Database
	log        *slog.Logger
	pages      *pages
	handler    http.Handler
	operations *operations
	counts     *counts
	slots      chan struct{} // one for each query of a page that runs
	releases   chan struct{} // held by the release that runs
}

// New returns the dashboard of a database. Close it to end its operations.
func New(cfg Config) (*Dashboard, error) {
	switch {
	case cfg.Database == nil:
		return nil, errors.New("dashboard: no Database")
	case cfg.Prefix != "" && (!strings.HasPrefix(cfg.Prefix, "/") || strings.HasSuffix(cfg.Prefix, "/") || strings.ContainsAny(cfg.Prefix, `?#{}\"' `)):
		return nil, fmt.Errorf("dashboard: Prefix %q: want a path such as /waybill, without a slash at its end", cfg.Prefix)
	}
	if err := cfg.Redact.check(); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	cfg.Title, cfg.Command = cmp.Or(cfg.Title, "waybill"), cmp.Or(cfg.Command, "waybill")
	if cfg.FailureTransport == nil {
		cfg.FailureTransport = func(string) string { return "" }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Dashboard{cfg: cfg, db: cfg.Database, log: cfg.Log, slots: make(chan struct{}, connections), releases: make(chan struct{}, 1)}
	d.operations, d.counts = newOperations(), newCounts(cfg.Log)
	var err error
	if d.pages, err = parsePages(cfg); err != nil {
		return nil, err
	}
	d.handler = d.routes()
	return d, nil
}

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.handler.ServeHTTP(w, r) }

// Close cancels the operations that run, each after the batch it is at, and counts, and waits
// for them.
func (d *Dashboard) Close() error {
	d.counts.close()
	d.operations.close()
	return nil
}

// acquire waits for one of slots, and returns the function that gives it back.
func acquire(ctx context.Context, slots chan struct{}) (release func(), err error) {
	select {
	case slots <- struct{}{}:
		return sync.OnceFunc(func() { <-slots }), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
