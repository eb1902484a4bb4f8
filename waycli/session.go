package waycli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/history"
)

// A session is one run of a command: its streams, its configuration and the databases
// it has opened. It belongs to the command's goroutine.
type session struct {
	app    App
	flags  flags
	stdin  io.Reader
	stdout *output
	stderr *screen
	log    *slog.Logger

	cfg      *config.Config
	opened   map[string]Database                // by DSN
	server   Database                           // of --server; nil until it is needed
	readOnly bool                               // of their sessions
	closers  []io.Closer                        // ends of transports at brokers
	need     int                                // connections, see Open
	loops    []func(within time.Duration) error // Alive of relays and workers
	admin    *adminListener                     // nil without an address
	parts    []readyPart                        // that the loops need
	tracing  sync.Once                          // starts tracer
	tracer   waybill.Tracer                     // may be nil
	reaper   *reaper                            // of --exec; nil until a command may run
	service  *Service                           // argument of App.Bus
	handlers *waybill.Bus                       // its result
	recorder *history.Recorder                  // nil until the database is open
	late     lateHistory                        // of observers that were there before
}

func (c *cli) newSession(cmd *cobra.Command) (*session, error) {
	s := &session{
		app: c.app, flags: c.flags, stdin: cmd.InOrStdin(), opened: map[string]Database{},
		stdout: &output{w: cmd.OutOrStdout()}, stderr: newScreen(cmd.ErrOrStderr()),
	}
	color := !s.flags.noColor && os.Getenv("NO_COLOR") == "" && s.stderr.terminal
	log, err := newLog(s.stderr, s.flags.logLevel, s.flags.logFormat, color)
	s.log = log
	return s, err
}

// close closes the databases and brokers.
func (s *session) close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c.Close())
	}
	for _, db := range s.opened {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// say prints a line to stderr.
func (s *session) say(format string, args ...any) { fmt.Fprintf(s.stderr, format+"\n", args...) }

// config returns the configuration, with --database in it.
func (s *session) config() (*config.Config, error) {
	if s.cfg != nil {
		return s.cfg, nil
	}
	cfg, err := config.Load(s.flags.config, nil)
	if err != nil {
		return nil, err
	}
	if s.flags.database != "" {
		if cfg.Database, err = config.ParseDSN(s.flags.database); err != nil {
			return nil, at("--database", err)
		}
		if err := cfg.Validate(); err != nil {
			return nil, at("--database", err)
		}
	}
	s.cfg = cfg
	return cfg, nil
}

// at names the flag in errors about its value.
func at(flag string, err error) error {
	if invalid, ok := err.(*config.Error); ok {
		relabeled := *invalid
		relabeled.File, relabeled.Line, relabeled.Path = "", 0, flag
		return &relabeled
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, one := range several.Unwrap() {
			errs = append(errs, at(flag, one))
		}
		return errors.Join(errs...)
	}
	return err
}

// database opens the configured database, whose tables must be in place.
func (s *session) database(ctx context.Context) (Database, error) {
	if s.flags.server != "" {
		s.cfg = &config.Config{} // of no file: the server has its own
		var err error
		if s.server == nil {
			s.server, err = s.remote()
		}
		return s.server, err
	}
	cfg, err := s.config()
	if err != nil {
		return nil, err
	}
	return s.open(ctx, cfg.Database, s.origin())
}

// origin returns the place of the configured database.
func (s *session) origin() string {
	switch {
	case s.flags.database != "":
		return "--database"
	case !s.named():
		return "the default: name another with --database or in " + config.DefaultFile
	}
	return s.cfg.Origins()["database"]
}

// named reports whether the database is not the default one.
func (s *session) named() bool {
	return s.flags.database != "" || s.cfg.Origins()["database"] != "default"
}

// open opens a database, once for each DSN. Origin is the place of the DSN.
func (s *session) open(ctx context.Context, dsn config.DSN, origin string) (Database, error) {
	if db, ok := s.opened[dsn.Reveal()]; ok {
		return db, nil
	}
	db, err := s.openAny(ctx, dsn, origin, false)
	if err != nil {
		return nil, err
	}
	status, err := db.SchemaStatus(ctx)
	if err == nil {
		err = s.schemaProblem(status)
	}
	var problem *Error
	if errors.As(err, &problem) && status.Version < status.Wanted && !dsn.Equal(s.cfg.Database) {
		problem.Hint = fmt.Sprintf("run `%s schema up --database %s` first", s.app.Name, dsn)
	}
	return db, err
}

// openAny opens a database without a check of its tables.
func (s *session) openAny(ctx context.Context, dsn config.DSN, origin string, create bool) (Database, error) {
	driver, err := s.driver(dsn)
	if err != nil {
		return nil, err
	}
	db, err := driver.Open(ctx, dsn, Open{Create: create, Retention: s.cfg.Inbox.Retention, IdleTimeout: s.cfg.Outbox.IdleTimeout, Connections: s.need, ReadOnly: s.readOnly})
	hint := joined(adviceIn(err, "check that the database runs there"), fmt.Sprintf("%s comes from %s", dsn, origin))
	switch {
	case errors.Is(err, context.Canceled):
		return nil, fmt.Errorf("open %s: %w", dsn, err)
	case errors.Is(err, waybill.ErrUnavailable):
		if dsn.Host == "" {
			return nil, fmt.Errorf("open %s: %w", dsn, err) // a file
		}
		return nil, &Error{Unavailable, fmt.Errorf("open %s: %w", dsn, err), hint}
	case err != nil:
		return nil, &Error{Usage, err, hint}
	}
	s.opened[dsn.Reveal()] = db
	s.late.recorder.Store(s.history())
	s.needs("database "+dsn.String(), func(ctx context.Context) error {
		status, err := db.SchemaStatus(ctx)
		if err == nil {
			err = s.schemaProblem(status)
		}
		return err
	})
	return db, nil
}

// adviceIn returns the hint of err, or otherwise if err is an outage without one.
func adviceIn(err error, otherwise string) string {
	if own := (*Error)(nil); errors.As(err, &own) && own.Hint != "" {
		return own.Hint
	}
	if errors.Is(err, waybill.ErrUnavailable) {
		return otherwise
	}
	return ""
}

func (s *session) driver(dsn config.DSN) (Driver, error) {
	driver, ok := s.app.Databases[dsn.Scheme]
	if !ok {
		return Driver{}, &Error{Usage, fmt.Errorf("%s: %s cannot open %s databases", dsn, s.app.Name, dsn.Scheme), "it opens " + s.databases()}
	}
	return driver, nil
}

// databases lists the schemes of databases that can be opened.
func (s *session) databases() string {
	return strings.Join(slices.Sorted(maps.Keys(s.app.Databases)), ", ")
}

// schemaProblem returns an error unless this version can work with the tables.
func (s *session) schemaProblem(status admin.SchemaStatus) error {
	if status.Err() == nil {
		return nil
	}
	hint := fmt.Sprintf("run `%s schema up` first, with the same --config or --database", s.app.Name)
	switch {
	case status.Version == 0:
		return &Error{Usage, fmt.Errorf("%s has no waybill tables (prefix %s)", status.Database, status.Prefix), hint}
	case status.Version < status.Wanted:
		return &Error{Usage, fmt.Errorf("the tables of %s have version %d, this %s needs %d", status.Database, status.Version, s.app.Name, status.Wanted), hint}
	}
	return &Error{Usage, fmt.Errorf("the tables of %s have version %d, this %s knows up to %d", status.Database, status.Version, s.app.Name, status.Wanted+1), "use a newer " + s.app.Name}
}

// bus returns the application's handlers. A panic of a registration with an error is
// returned as that error, without a stack.
func (s *session) bus(ctx context.Context) (bus *waybill.Bus, err error) {
	if s.handlers != nil {
		return s.handlers, nil
	}
	if _, err := s.config(); err != nil {
		return nil, err
	}
	defer func() {
		switch v := recover().(type) {
		case nil:
		case runtime.Error:
			panic(v)
		case error:
			err = &Error{Usage, fmt.Errorf("handlers of %s: %w", s.app.Name, v), "mend the registration in the program"}
		default:
			panic(v)
		}
	}()
	s.service = &Service{s: s}
	s.handlers, err = s.app.Bus(ctx, s.service)
	if err == nil && s.handlers == nil {
		err = errors.New("App.Bus returned no bus")
	}
	if err != nil {
		return nil, fmt.Errorf("handlers of %s: %w", s.app.Name, err)
	}
	return s.handlers, nil
}
