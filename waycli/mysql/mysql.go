// Package mysql lets the commands of waycli open MySQL and MariaDB databases:
// for waycli.App.Databases, under the scheme "mysql".
package mysql

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/schedule"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waymysql"
)

// Driver returns the driver of mysql:// and mariadb:// DSNs.
func Driver() waycli.Driver {
	return waycli.Driver{Open: open, SchemaSQL: schemaSQL, Schema: func(dsn config.DSN) string { return dsn.Path }}
}

func schemaSQL(names waycli.Names) (string, error) {
	if names.Schema == "" {
		return "", wrong(errors.New("--schema is missing"), "it names the database that the tables are in")
	}
	return waymysql.SchemaSQL(names.Schema, names.Prefix)
}

// DB returns the configured database of a service, which must be MySQL or MariaDB.
func DB(ctx context.Context, svc *waycli.Service) (*waymysql.DB, error) {
	db, err := waycli.DatabaseAs[database](ctx, svc, "MySQL or MariaDB")
	return db.DB, err
}

// database is a *waymysql.DB without its transaction type.
type database struct{ *waymysql.DB }

var _ waycli.Database = database{}

// usualConnections is how many units of work one process has at once unless it
// can use more.
const usualConnections = 10

func open(ctx context.Context, dsn config.DSN, how waycli.Open) (waycli.Database, error) {
	cfg := waymysql.Config{
		Retention:   how.Retention,
		IdleTimeout: how.IdleTimeout,
		MaxConns:    max(how.Connections, usualConnections),
	}
	variable := map[bool]string{true: "transaction_read_only"}[how.ReadOnly]
	db, err := openWith(ctx, dsn, cfg, variable)
	if how.ReadOnly && errors.Is(err, errUnknownVariable) {
		db, err = openWith(ctx, dsn, cfg, "tx_read_only") // MariaDB before 11.1
	}
	if err != nil {
		return nil, err
	}
	return database{db}, nil
}

// Open opens the database of a mysql:// DSN, with its prefix unless cfg has one, and
// connects once as a check. Errors are written for users.
func Open(ctx context.Context, dsn config.DSN, cfg waymysql.Config) (*waymysql.DB, error) {
	return openWith(ctx, dsn, cfg, "")
}

var errUnknownVariable = errors.New("unknown variable of a session")

// openWith is Open with a variable that is to be 1 in each session, unless it is empty.
func openWith(ctx context.Context, dsn config.DSN, cfg waymysql.Config, variable string) (*waymysql.DB, error) {
	to, err := Config(dsn)
	if err != nil {
		return nil, err
	}
	if variable != "" {
		to.Params = map[string]string{variable: "1"}
	}
	if cfg.Prefix == "" {
		cfg.Prefix = dsn.Text("prefix", "")
	}
	db, err := waymysql.OpenConfig(to, cfg)
	if err != nil {
		return nil, explain(dsn, err)
	}
	timeout := dsn.Duration("connect_timeout", defaultTimeout)
	// The client's own timeout ends with the dial: a server may be silent after it.
	reaching, cancel := context.WithTimeoutCause(ctx, timeout, errSilent)
	defer cancel()
	if err := db.Pool().PingContext(reaching); err != nil {
		if cause := context.Cause(reaching); ctx.Err() == nil && cause != nil {
			err = errors.Join(cause, err)
		}
		return nil, errors.Join(explain(dsn, err), db.Close())
	}
	return db, nil
}

const defaultTimeout = 10 * time.Second

// Dispatcher implements waycli.Database.
func (db database) Dispatcher(cfg outbox.Config) (waycli.Dispatch, error) {
	return waycli.NewDispatch(db.DB, cfg)
}

// Schedule implements waycli.Database.
func (db database) Schedule(cfg outbox.Config, log *slog.Logger, schedules []schedule.Schedule) (waycli.Run, error) {
	return waycli.RunSchedules(db.DB, cfg, log, schedules)
}

// Queue implements waycli.Database.
func (db database) Queue(dsn config.DSN) (waycli.Queue, error) {
	return db.DB.Queue(dsn.Host, waymysql.QueueConfig{Lease: dsn.Duration("lease", 0)})
}
