package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waysqlite"
)

// sqliteDB is a *waysqlite.DB without its transaction type.
type sqliteDB struct{ *waysqlite.DB }

var _ waycli.Database = sqliteDB{}

func openSQLite(_ context.Context, dsn config.DSN, how waycli.Open) (waycli.Database, error) {
	db, err := waysqlite.Open(dsn.Path, waysqlite.Config{
		Prefix:      dsn.Text("prefix", ""),
		Normal:      dsn.Enum("synchronous", "full") == "normal",
		BusyTimeout: dsn.Duration("busy_timeout", 0),
		Retention:   how.Retention,
		MustExist:   !how.Create,
	})
	if err != nil {
		return nil, err
	}
	return sqliteDB{db}, nil
}

// Dispatcher implements waycli.Database.
func (db sqliteDB) Dispatcher(cfg outbox.Config) (waycli.Dispatch, error) {
	out, err := outbox.New(db.DB, cfg)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, msgs ...any) (ids []waybill.MessageID, err error) {
		err = out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
			ids, err = out.DispatchAll(ctx, tx.SQL(), msgs...)
			return err
		})
		return ids, err
	}, nil
}

// Queue implements waycli.Database.
func (db sqliteDB) Queue(dsn config.DSN) (waycli.Queue, error) {
	return db.DB.Queue(dsn.Host, waysqlite.QueueConfig{Lease: dsn.Duration("lease", 0)})
}

// sqliteSchema has the SQL written by a database of its own, which it removes.
func sqliteSchema(prefix string) (_ string, err error) {
	dir, err := os.MkdirTemp("", "waybill-schema-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := waysqlite.Open(filepath.Join(dir, "empty.db"), waysqlite.Config{Prefix: prefix})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.SchemaSQL()
}
