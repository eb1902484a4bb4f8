package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waypg"
)

// openPostgres opens a service in a new schema of a database, which close drops.
func openPostgres(ctx context.Context, dsn config.DSN, connString func(config.DSN) (string, error), part string) (service, error) {
	conn, err := connString(dsn)
	if err != nil {
		return nil, err
	}
	schema := fmt.Sprintf("demo_%s_%d", part, time.Now().UnixMilli())
	db, err := waypg.Open(ctx, conn, waypg.Config{Schema: schema})
	if err != nil {
		return nil, err
	}
	end := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := db.Pool().Exec(ctx, `DROP SCHEMA IF EXISTS "`+schema+`" CASCADE`)
		return errors.Join(err, db.Close())
	}
	in := func(statement string) string {
		for _, table := range []string{"demo_steps", "waybill_outbox"} {
			statement = strings.ReplaceAll(statement, table, `"`+schema+`".`+table)
		}
		return statement
	}
	if _, err = db.SchemaUp(ctx); err == nil {
		_, err = db.Pool().Exec(ctx, in("CREATE TABLE demo_steps (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id int NOT NULL, step int NOT NULL, message_id uuid NOT NULL)"))
	}
	if err != nil {
		return nil, errors.Join(err, end())
	}
	out, err := newOutbox(db)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return &backend[pgx.Tx]{
		Store: db, out: out, inbox: db, shared: true, end: end, name: withOption(dsn.Reveal(), "schema="+schema),
		insert: func(ctx context.Context, tx pgx.Tx, s step) error {
			_, err := tx.Exec(ctx, in("INSERT INTO demo_steps (order_id, step, message_id) VALUES ($1, $2, $3)"), s.order, s.step, s.id.String())
			return err
		},
		own: func(ctx context.Context, fn func(tx pgx.Tx) error) error { return pgx.BeginFunc(ctx, db.Pool(), fn) },
		read: func(ctx context.Context, what string) ([]step, error) {
			rows, err := db.Pool().Query(ctx, in(what))
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s step, err error) {
				var id [16]byte
				err = row.Scan(&s.order, &s.step, &id)
				s.id = id
				return s, err
			})
		},
	}, nil
}

// withOption adds an option to a DSN.
func withOption(dsn, option string) string {
	if strings.Contains(dsn, "?") {
		return dsn + "&" + option
	}
	return dsn + "?" + option
}
