package bench

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

const seenPostgres = `INSERT INTO {}.seen (handler, dedup_key, message_id) VALUES ($1, $2, $3::uuid) ON CONFLICT (handler, dedup_key) DO NOTHING`

func (p *postgres) handle(bus *waybill.Bus, opts ...inbox.Option) {
	insert := p.sql(insertOrder)
	inbox.Handle(bus, p.db, "bench", func(ctx context.Context, tx pgx.Tx, m sold) error {
		_, err := tx.Exec(ctx, insert, m.Customer, m.Cents)
		return err
	}, opts...)
}

func (p *postgres) one(ctx context.Context, id string, m sold) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return p.effect(ctx, tx, id, m) })
}

func (p *postgres) many(ctx context.Context, ids []string, ms []sold) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		for i, m := range ms {
			if _, err := tx.Exec(ctx, "SAVEPOINT one"); err != nil {
				return err
			}
			if err := p.effect(ctx, tx, ids[i], m); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "RELEASE SAVEPOINT one"); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *postgres) effect(ctx context.Context, tx pgx.Tx, id string, m sold) error {
	tag, err := tx.Exec(ctx, p.sql(seenPostgres), "bench", id, id)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	_, err = tx.Exec(ctx, p.sql(insertOrder), m.Customer, m.Cents)
	return err
}

func (p *postgres) clearInbox(ctx context.Context) error {
	return p.exec(ctx, "CREATE TABLE IF NOT EXISTS {}.seen (LIKE {}.waybill_inbox INCLUDING ALL)",
		"TRUNCATE {}.seen", "TRUNCATE {}.waybill_inbox", "TRUNCATE {}.orders")
}

func (p *postgres) effects(ctx context.Context) (all, different int, err error) {
	err = p.pool.QueryRow(ctx, p.sql("SELECT count(*), count(DISTINCT cents) FROM {}.orders")).Scan(&all, &different)
	return all, different, err
}

const seenMySQL = `INSERT IGNORE INTO {}seen (handler, dedup_key, message_id, processed_at) VALUES (?, ?, ?, UTC_TIMESTAMP(6))`

func (p *mysql) handle(bus *waybill.Bus, opts ...inbox.Option) {
	insert := p.sql(insertMySQLOrder)
	inbox.Handle(bus, p.db, "bench", func(ctx context.Context, tx *sql.Tx, m sold) error {
		_, err := tx.ExecContext(ctx, insert, m.Customer, m.Cents)
		return err
	}, opts...)
}

func (p *mysql) one(ctx context.Context, id string, m sold) error {
	return p.begin(ctx, func(tx *sql.Tx) error { return p.effect(ctx, tx, id, m) })
}

func (p *mysql) many(ctx context.Context, ids []string, ms []sold) error {
	return p.begin(ctx, func(tx *sql.Tx) error {
		for i, m := range ms {
			if _, err := tx.ExecContext(ctx, "SAVEPOINT one"); err != nil {
				return err
			}
			if err := p.effect(ctx, tx, ids[i], m); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT one"); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *mysql) effect(ctx context.Context, tx *sql.Tx, id string, m sold) error {
	message, err := waybill.ParseMessageID(id)
	if err != nil {
		return err
	}
	res, err := tx.ExecContext(ctx, p.sql(seenMySQL), "bench", id, message[:])
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	_, err = tx.ExecContext(ctx, p.sql(insertMySQLOrder), m.Customer, m.Cents)
	return err
}

func (p *mysql) clearInbox(ctx context.Context) error {
	return p.exec(ctx, "CREATE TABLE IF NOT EXISTS {}seen LIKE {}inbox", "TRUNCATE {}seen", "TRUNCATE {}inbox", "TRUNCATE {}orders")
}

func (p *mysql) effects(ctx context.Context) (all, different int, err error) {
	err = p.db.Pool().QueryRowContext(ctx, p.sql("SELECT COUNT(*), COUNT(DISTINCT cents) FROM {}orders")).Scan(&all, &different)
	return all, different, err
}
