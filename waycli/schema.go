package waycli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
)

func (c *cli) schemaCommand() *cobra.Command {
	var dialect string
	printSQL := &cobra.Command{
		Use:   "print",
		Short: "Print the SQL that creates the tables, for a migration tool of your own",
		Long: `Print the SQL that "schema up" runs on an empty database. No database is opened.

With --json: {"dialect", "prefix", "sql"}.`,
		Example: `  waybill schema print --dialect sqlite > 0001_waybill.sql`,
		Args:    cobra.NoArgs,
		RunE: c.run(func(_ context.Context, s *session, _ []string) error {
			return s.printSchema(dialect)
		}),
	}
	printSQL.Flags().StringVar(&dialect, "dialect", "", "scheme of the database (default: that of the configured one)")
	return group(&cobra.Command{Use: "schema", Short: "Create, compare and print waybill's tables"},
		&cobra.Command{
			Use:   "up",
			Short: "Create or upgrade the tables",
			Long: `Create or upgrade the tables of the configured database, and the database file
itself. It may be repeated: what is there stays.

With --json: {"database", "prefix", "version", "wanted", "pending", "applied"}.`,
			Args: cobra.NoArgs,
			RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.schemaUp(ctx) }),
		},
		&cobra.Command{
			Use:   "status",
			Short: "Compare the tables with what this version needs; exit code 7 if they do not fit",
			Long: `Compare the tables with what this version needs. Exit code 7 says that they are
missing, too old or too new.

With --json: {"database", "prefix", "version", "wanted", "pending"}.`,
			Args: cobra.NoArgs,
			RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.schemaStatus(ctx) }),
		},
		printSQL,
	)
}

func (s *session) schemaUp(ctx context.Context) error {
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
	s.printStatus(status)
	return s.schemaProblem(status)
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
	s.printStatus(status)
	if err := s.schemaProblem(status); err != nil {
		return &Error{CheckFailed, err, hintOf(err, s.app.Name)}
	}
	return nil
}

func (s *session) printStatus(status admin.SchemaStatus) {
	if s.flags.json {
		s.stdout.json(status)
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
}

func (s *session) printSchema(dialect string) error {
	prefix := ""
	if dialect == "" {
		cfg, err := s.config()
		if err != nil {
			return err
		}
		dialect, prefix = cfg.Database.Scheme, cfg.Database.Text("prefix", "")
	}
	driver, ok := s.app.Databases[dialect]
	if !ok {
		return &Error{Usage, fmt.Errorf("no SQL for dialect %q", dialect), "dialects: " + s.databases()}
	}
	text, err := driver.SchemaSQL(prefix)
	if err != nil {
		return err
	}
	if s.flags.json {
		s.stdout.json(struct {
			Dialect string `json:"dialect"`
			Prefix  string `json:"prefix,omitempty"`
			SQL     string `json:"sql"`
		}{dialect, prefix, text})
		return nil
	}
	_, err = fmt.Fprint(s.stdout, text)
	return err
}
