package bench

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

var seenPostgres = map[table]string{
	ideal.table: `INSERT INTO {}.seen (handler, dedup_key, message_id) VALUES ('bench', $1::text, $1::text::uuid) ON CONFLICT (handler, dedup_key) DO NOTHING`,
	bare.table:  `INSERT INTO {}.seen_bare (message_id) VALUES ($1) ON CONFLICT DO NOTHING`,
}

func (p *postgres) handle(bus *waybill.Bus, opts ...inbox.Option) {
	insert := p.sql(insertOrder)
	inbox.Handle(bus, p.db, "bench", func(ctx context.Context, tx pgx.Tx, m sold) error {
		_, err := tx.Exec(ctx, insert, m.Customer, m.Cents)
		return err
	}, opts...)
}

func (p *postgres) handleByHand(ctx context.Context, y yardstick, ids []string, ms []sold) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if len(ms) == 1 || y.table == bare.table {
			return p.effect(ctx, tx, y, ids, ms)
		}
		for i := range ms {
			if _, err := tx.Exec(ctx, "SAVEPOINT one"); err != nil {
				return err
			}
			if err := p.effect(ctx, tx, y, ids[i:i+1], ms[i:i+1]); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "RELEASE SAVEPOINT one"); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *postgres) effect(ctx context.Context, tx pgx.Tx, y yardstick, ids []string, ms []sold) error {
	for i, m := range ms {
		tag, err := tx.Exec(ctx, p.sql(seenPostgres[y.table]), ids[i])
		if err == nil && tag.RowsAffected() > 0 {
			_, err = tx.Exec(ctx, p.sql(insertOrder), m.Customer, m.Cents)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *postgres) clearInbox(ctx context.Context) error {
	return p.exec(ctx, "CREATE TABLE IF NOT EXISTS {}.seen (LIKE {}.waybill_inbox INCLUDING ALL)",
		"CREATE TABLE IF NOT EXISTS {}.seen_bare (message_id uuid PRIMARY KEY)", "TRUNCATE {}.seen_bare", "TRUNCATE {}.seen", "TRUNCATE {}.waybill_inbox", "TRUNCATE {}.orders")
}

func (p *postgres) effects(ctx context.Context) (all, different int, err error) {
	err = p.pool.QueryRow(ctx, p.sql("SELECT count(*), count(DISTINCT cents) FROM {}.orders")).Scan(&all, &different)
	return all, different, err
}

var seenMySQL = map[table]string{
	ideal.table: `INSERT IGNORE INTO {}seen (handler, dedup_key, message_id, processed_at) VALUES ('bench', ?, ?, UTC_TIMESTAMP(6))`,
	bare.table:  `INSERT IGNORE INTO {}seen_bare (message_id) VALUES (?)`,
}

func (p *mysql) handle(bus *waybill.Bus, opts ...inbox.Option) {
	insert := p.sql(insertMySQLOrder)
	inbox.Handle(bus, p.db, "bench", func(ctx context.Context, tx *sql.Tx, m sold) error {
		_, err := tx.ExecContext(ctx, insert, m.Customer, m.Cents)
		return err
	}, opts...)
}

func (p *mysql) handleByHand(ctx context.Context, y yardstick, ids []string, ms []sold) error {
	return p.begin(ctx, func(tx *sql.Tx) error {
		if len(ms) == 1 || y.table == bare.table {
			return p.effect(ctx, tx, y, ids, ms)
		}
		for i := range ms {
			if _, err := tx.ExecContext(ctx, "SAVEPOINT one"); err != nil {
				return err
			}
			if err := p.effect(ctx, tx, y, ids[i:i+1], ms[i:i+1]); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT one"); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *mysql) effect(ctx context.Context, tx *sql.Tx, y yardstick, ids []string, ms []sold) error {
	for i, m := range ms {
		message, err := waybill.ParseMessageID(ids[i])
		if err != nil {
			return err
		}
		args := []any{message[:]}
		if y.table == ideal.table {
			args = []any{ids[i], message[:]}
		}
		res, err := tx.ExecContext(ctx, p.sql(seenMySQL[y.table]), args...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			continue
		}
		if _, err := tx.ExecContext(ctx, p.sql(insertMySQLOrder), m.Customer, m.Cents); err != nil {
			return err
		}
	}
	return nil
}

func (p *mysql) clearInbox(ctx context.Context) error {
	return p.exec(ctx, "CREATE TABLE IF NOT EXISTS {}seen LIKE {}inbox",
		"CREATE TABLE IF NOT EXISTS {}seen_bare (message_id binary(16) PRIMARY KEY)", "TRUNCATE {}seen_bare", "TRUNCATE {}seen", "TRUNCATE {}inbox", "TRUNCATE {}orders")
}

func (p *mysql) effects(ctx context.Context) (all, different int, err error) {
	err = p.db.Pool().QueryRowContext(ctx, p.sql("SELECT COUNT(*), COUNT(DISTINCT cents) FROM {}orders")).Scan(&all, &different)
	return all, different, err
}
