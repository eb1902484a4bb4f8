package waycli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
)

func (c *cli) schemaCommand() *cobra.Command {
	var dialect string
	var names Names
	printSQL := &cobra.Command{
		Use:   "print",
		Short: "Print the SQL that creates the tables, for a migration tool of your own",
		Long: `Print the SQL that "schema up" runs on an empty database. No database is opened.

Without --dialect, the schema and prefix are those of the configured database.
MySQL and MariaDB call a database a schema: with --dialect mysql, --schema names it.

With --json: {"dialect", "schema", "prefix", "sql"}; an empty schema or prefix is
left out, and means the default.`,
		Example: `  waybill schema print --dialect postgres --schema messaging > 0001_waybill.sql`,
		Args:    cobra.NoArgs,
		RunE: c.run(func(_ context.Context, s *session, _ []string) error {
			return s.printSchema(dialect, names)
		}),
	}
	p := printSQL.Flags()
	p.StringVar(&dialect, "dialect", "", "scheme of the database (default: that of the configured one)")
	p.StringVar(&names.Schema, "schema", "", "schema of the tables, where there are schemas; on MySQL their database")
	p.StringVar(&names.Prefix, "prefix", "", "what the names of the tables begin with (default waybill_)")
	return group(&cobra.Command{Use: "schema", Short: "Create, compare and print waybill's tables"},
		c.schemaUpCommand(),
		&cobra.Command{
			Use:   "status",
			Short: "Compare the tables with what this version needs; exit code 7 if they do not fit",
			Long: `Compare the tables with what this version needs. Exit code 7 says that they are
missing, too old or too new.

With --json: {"database", "prefix", "version", "wanted", "pending"}.`,
			Example: "  waybill schema status",
			Args:    cobra.NoArgs,
			RunE:    c.run(func(ctx context.Context, s *session, _ []string) error { return s.schemaStatus(ctx) }),
		},
		printSQL,
		c.rebucketCommand(),
	)
}

func (c *cli) schemaUpCommand() *cobra.Command {
	var transports bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create or upgrade the tables, and with --transports what brokers need",
		Long: `Create or upgrade the tables of the configured database, and a SQLite file
itself. The transports of the configuration are made known to the outbox. It may
be repeated: what is there stays.

With --transports it also declares at the brokers what the DSNs of the transports
name: exchanges, queues and bindings, all durable. Without it no broker is
touched; relays and workers never declare anything. An exchange that only
outbox.routes names is not declared.

With --json: {"database", "prefix", "version", "wanted", "pending", "applied"},
and with --transports "transports": [{"transport", "declared": [...]}].`,
		Example: `  waybill schema up --transports`,
		Args:    cobra.NoArgs,
		RunE:    c.run(func(ctx context.Context, s *session, _ []string) error { return s.schemaUp(ctx, transports) }),
	}
	cmd.Flags().BoolVar(&transports, "transports", false, "also declare exchanges, queues and bindings at the brokers")
	return cmd
}

func (s *session) schemaUp(ctx context.Context, transports bool) error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	db, err := s.openAny(ctx, cfg.Database, s.origin(), true)
	if err != nil {
		return err
	}
	status, err := db.SchemaUp(ctx)
	if err != nil {
		return err
	}
	if err := s.schemaProblem(status); err != nil {
		s.printStatus(status, nil)
		return err
	}
	if err := s.addTransports(db); err != nil {
		return err
	}
	if !transports {
		s.printStatus(status, nil)
		return nil
	}
	declared, err := s.declareTransports(ctx)
	s.printStatus(status, declared)
	if err == nil && len(declared) == 0 {
		s.say("no transport has a broker: nothing was declared")
	}
	return err
}

// addTransports registers the transports with the outbox, so that other programs can
// dispatch to them at once.
func (s *session) addTransports(db Database) error {
	out := outboxOf(s.cfg)
	if len(out.Transports) == 0 {
		return nil
	}
	out.To = out.Transports[0]
	_, err := db.Dispatcher(out)
	return err
}

func (s *session) schemaStatus(ctx context.Context) error {
	cfg, err := s.config()
	if err != nil {
		return err
	}
	db, err := s.openAny(ctx, cfg.Database, s.origin(), false)
	if err != nil {
		return err
	}
	status, err := db.SchemaStatus(ctx)
	if err != nil {
		return err
	}
	s.printStatus(status, nil)
	if err := s.schemaProblem(status); err != nil {
		return &Error{CheckFailed, err, hintOf(err, s.app.Name)}
	}
	return nil
}

// printStatus prints the state of the tables, and of the transports unless they are
// nil.
func (s *session) printStatus(status admin.SchemaStatus, transports []Declared) {
	if s.flags.json {
		var all any = status
		if transports != nil {
			all = struct {
				admin.SchemaStatus
				Transports []Declared `json:"transports"`
			}{status, transports}
		}
		s.stdout.json(all)
		return
	}
	s.stdout.line("database  %s (prefix %s)", plain(status.Database), status.Prefix)
	s.stdout.line("version   %d, this %s needs %d", status.Version, s.app.Name, status.Wanted)
	if len(status.Applied) > 0 {
		s.stdout.line("applied   %s", strings.Join(status.Applied, ", "))
	}
	if len(status.Pending) > 0 {
		s.stdout.line("pending   %s", strings.Join(status.Pending, ", "))
	}
	for _, t := range transports {
		for _, thing := range t.Things {
			s.stdout.line("declared  %s: %s", t.Transport, plain(thing))
		}
	}
}

func (s *session) printSchema(dialect string, names Names) error {
	if dialect == "" {
		cfg, err := s.config()
		if err != nil {
			return err
		}
		dialect = cfg.Database.Scheme
		if driver := s.app.Databases[dialect]; driver.Schema != nil {
			names.Schema = cmp.Or(names.Schema, driver.Schema(cfg.Database))
		}
		names.Prefix = cmp.Or(names.Prefix, cfg.Database.Text("prefix", ""))
	}
	driver, ok := s.app.Databases[dialect]
	if !ok {
		return &Error{Usage, fmt.Errorf("no SQL for dialect %q", dialect), "dialects: " + s.databases()}
	}
	if names.Schema != "" && driver.Schema == nil {
		return &Error{Usage, fmt.Errorf("--schema: a database of %s has no schemas", dialect), "leave it out; --prefix keeps tables apart"}
	}
	text, err := driver.SchemaSQL(names)
	if err != nil {
		var invalid *config.Error
		var own *Error
		switch {
		case errors.As(err, &invalid):
			return at("--schema", err)
		case errors.As(err, &own):
			return err
		}
		return &Error{Usage, err, ""}
	}
	if s.flags.json {
		s.stdout.json(struct {
			Dialect string `json:"dialect"`
			Schema  string `json:"schema,omitempty"`
			Prefix  string `json:"prefix,omitempty"`
			SQL     string `json:"sql"`
		}{dialect, names.Schema, names.Prefix, text})
		return nil
	}
	_, err = fmt.Fprint(s.stdout, text)
	return err
}
