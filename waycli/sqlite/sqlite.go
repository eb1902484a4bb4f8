// Package sqlite lets the commands of waycli open SQLite databases: for
// waycli.App.Databases, under the scheme "sqlite".
package sqlite

import (
	"context"
	"log/slog"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/schedule"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waysqlite"
)

// Driver returns the driver of sqlite:// DSNs.
func Driver() waycli.Driver {
	return waycli.Driver{Open: open, SchemaSQL: func(names waycli.Names) (string, error) { return waysqlite.SchemaSQL(names.Prefix) }}
}

// DB returns the configured database of a service, which must be a SQLite file.
func DB(ctx context.Context, svc *waycli.Service) (*waysqlite.DB, error) {
	db, err := waycli.DatabaseAs[database](ctx, svc, "a SQLite file")
	return db.DB, err
}

// database is a *waysqlite.DB without its transaction type.
type database struct{ *waysqlite.DB }

var _ waycli.Database = database{}

func open(ctx context.Context, dsn config.DSN, how waycli.Open) (waycli.Database, error) {
	db, err := waysqlite.Open(ctx, dsn.Path, waysqlite.Config{
		Prefix:      dsn.Text("prefix", ""),
		Normal:      dsn.Enum("synchronous", "full") == "normal",
		BusyTimeout: dsn.Duration("busy_timeout", 0),
		Retention:   how.Retention,
		MustExist:   !how.Create,
		ReadOnly:    how.ReadOnly,
	})
	if err != nil {
		return nil, err
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
	return db.DB.Queue(dsn.Host, waysqlite.QueueConfig{Lease: dsn.Duration("lease", 0)})
}
