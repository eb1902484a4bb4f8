package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/droptables"
	"github.com/waybill-go/waybill/waymysql"
)

// openMySQL opens a service on tables with a new prefix in a database of MySQL
// or MariaDB, which close drops.
func openMySQL(ctx context.Context, dsn config.DSN, open OpenMySQL, part string) (service, error) {
	prefix := fmt.Sprintf("demo_%s_%d_", part, time.Now().UnixMilli())
	db, err := open(ctx, dsn, waymysql.Config{Prefix: prefix})
	if err != nil {
		return nil, err
	}
	end := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return errors.Join(droptables.WithPrefix(ctx, db.Pool(), prefix), db.Close())
	}
	in := strings.NewReplacer("demo_steps", prefix+"steps", "waybill_outbox", prefix+"outbox").Replace
	if _, err = db.SchemaUp(ctx); err == nil {
		_, err = db.Pool().ExecContext(ctx, in("CREATE TABLE demo_steps (n bigint AUTO_INCREMENT PRIMARY KEY, order_id int NOT NULL, step int NOT NULL, message_id binary(16) NOT NULL)"))
	}
	if err != nil {
		return nil, errors.Join(err, end())
	}
	out, err := newOutbox(db)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return &backend[*sql.Tx]{
		Store: db, out: out, inbox: db, shared: true, end: end, name: withOption(dsn.Reveal(), "prefix="+prefix),
		insert: func(ctx context.Context, tx *sql.Tx, s step) error {
			_, err := tx.ExecContext(ctx, in("INSERT INTO demo_steps (order_id, step, message_id) VALUES (?, ?, ?)"), s.order, s.step, s.id)
			return err
		},
		own: func(ctx context.Context, fn func(tx *sql.Tx) error) error {
			tx, err := db.Pool().BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // after a commit it does nothing
			if err := fn(tx); err != nil {
				return err
			}
			return tx.Commit()
		},
		read: func(ctx context.Context, what string) ([]step, error) { return readRows(ctx, db.Pool(), in(what)) },
	}, nil
}
