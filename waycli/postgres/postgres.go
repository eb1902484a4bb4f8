// Package postgres lets the commands of waycli open PostgreSQL databases: for
// waycli.App.Databases, under the scheme "postgres".
package postgres

import (
	"context"
	"log/slog"
	"net/url"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/schedule"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waypg"
)

// Driver returns the driver of postgres:// DSNs.
func Driver() waycli.Driver {
	return waycli.Driver{Open: open, SchemaSQL: schemaSQL, Schema: func(dsn config.DSN) string { return dsn.Text("schema", "") }}
}

// schemaSQL accepts the same names as a DSN.
func schemaSQL(names waycli.Names) (string, error) {
	if names.Schema != "" {
		if _, err := config.ParseDSN("postgres://localhost/?schema=" + url.PathEscape(names.Schema)); err != nil {
			return "", err
		}
	}
	return waypg.SchemaSQL(names.Schema, names.Prefix)
}

// DB returns the configured database of a service, which must be PostgreSQL.
func DB(ctx context.Context, svc *waycli.Service) (*waypg.DB, error) {
	db, err := waycli.DatabaseAs[database](ctx, svc, "PostgreSQL")
	return db.DB, err
}

// database is a *waypg.DB without its transaction type.
type database struct{ *waypg.DB }

var _ waycli.Database = database{}

func open(ctx context.Context, dsn config.DSN, how waycli.Open) (waycli.Database, error) {
	to, err := connString(dsn, how.Connections)
	if err != nil {
		return nil, err
	}
	if how.ReadOnly {
		to += "&default_transaction_read_only=on" // which a pooler in transaction mode refuses
	}
	listen, err := listenString(dsn)
	if err != nil {
		return nil, err
	}
	db, err := waypg.Open(ctx, to, waypg.Config{
		Schema:      dsn.Text("schema", ""),
		Prefix:      dsn.Text("prefix", ""),
		Retention:   how.Retention,
		IdleTimeout: how.IdleTimeout,
		Notify:      dsn.Bool("notify", false),
		Listen:      listen,
	})
	if err != nil {
		return nil, explain(dsn, err)
	}
	return database{db}, nil
}

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
	return db.DB.Queue(dsn.Host, waypg.QueueConfig{Lease: dsn.Duration("lease", 0)})
}
