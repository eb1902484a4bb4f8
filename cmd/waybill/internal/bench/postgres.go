package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// postgres is a schema in PostgreSQL.
type postgres struct {
	schema    string
	buckets   int
	conn      string
	pool      *pgxpool.Pool
	db        *waypg.DB
	transport int16
	out       *outbox.Outbox[pgx.Tx]
}

func newPostgres(ctx context.Context, opt Options, schema string) (_ *postgres, err error) {
	config, err := pgxpool.ParseConfig(opt.Postgres)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 40
	reachable, err := waypg.Open(ctx, opt.Postgres, waypg.Config{})
	if err != nil {
		return nil, err
	}
	if err := reachable.Close(); err != nil {
		return nil, err
	}
	p := &postgres{schema: schema, buckets: opt.buckets(), conn: opt.Postgres}
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.db, err = waypg.New(p.pool, waypg.Config{Schema: p.schema}); err != nil {
		return nil, err
	}
	if _, err := p.db.SchemaUp(ctx); err != nil {
		return nil, err
	}
	if err := rebucket(ctx, p.db, p.buckets); err != nil {
		return nil, err
	}
	if p.out, err = outbox.New(p.db, outbox.Config{}); err != nil {
		return nil, err
	}
	if err := p.pool.QueryRow(ctx, p.sql("SELECT id FROM {}.waybill_transport")).Scan(&p.transport); err != nil {
		return nil, err
	}
	return p, p.exec(ctx,
		// The yardsticks' outboxes: ideal with the columns of a message, bare with
		// its name and body alone.
		`CREATE TABLE {}.ideal (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id uuid NOT NULL, message_name text NOT NULL,
			partition_key text NOT NULL, headers jsonb NOT NULL, body bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`,
		`CREATE TABLE {}.bare (id bigserial PRIMARY KEY, message_name text NOT NULL, body bytea NOT NULL)`,
		`CREATE TABLE {}.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, cents int NOT NULL)`,
		`CREATE TABLE {}.deck (slot bigint PRIMARY KEY, k bigint NOT NULL)`,
		`INSERT INTO {}.deck VALUES `+values(),
		// The yardstick of dispatch writes to a table that is the very same.
		`CREATE TABLE {}.plain (LIKE {}.waybill_outbox INCLUDING ALL)`)
}

func (p *postgres) database() string    { return "postgres" }
func (p *postgres) option() string      { return "schema=" + p.schema }
func (p *postgres) store() outbox.Store { return p.db }

func (p *postgres) elsewhere(ctx context.Context) (outbox.Store, func() error, error) {
	db, err := waypg.Open(ctx, p.conn, waypg.Config{Schema: p.schema})
	if err != nil {
		return nil, nil, err
	}
	return db, db.Close, nil
}

// sql puts the schema into a statement.
func (p *postgres) sql(text string) string {
	return strings.ReplaceAll(text, "{}", pgx.Identifier{p.schema}.Sanitize())
}

func (p *postgres) exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := p.pool.Exec(ctx, p.sql(s)); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (p *postgres) clear(ctx context.Context) error {
	return p.exec(ctx, "TRUNCATE {}.waybill_outbox", "TRUNCATE {}.waybill_outbox_unkeyed", "TRUNCATE {}.plain", "TRUNCATE {}.ideal", "TRUNCATE {}.bare", "TRUNCATE {}.orders")
}

func (p *postgres) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := p.exec(ctx, "DROP SCHEMA IF EXISTS {} CASCADE")
	p.pool.Close()
	return err
}

func (p *postgres) target(int) float64 { return 0.85 }

// transactions compares InTx with an insert and COMMIT in one round trip, and
// DispatchAll in a caller's transaction with an insert and a separate COMMIT.
func (p *postgres) transactions() []transaction {
	return []transaction{
		{name: "InTx", waybill: p.inTx, plain: p.plainOneTrip},
		{name: "own transaction", waybill: p.own, plain: p.plainSeparate},
	}
}

const insertOrder = `INSERT INTO {}.orders (customer, cents) VALUES ($1, $2)`

func (p *postgres) inTx(ctx context.Context, ms []sold) error {
	return p.out.InTx(ctx, func(ctx context.Context, tx waypg.Tx) error {
		if _, err := tx.SQL().Exec(ctx, p.sql(insertOrder), ms[0].Customer, ms[0].Cents); err != nil {
			return err
		}
		for _, m := range ms {
			if _, err := tx.Dispatch(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *postgres) own(ctx context.Context, ms []sold) error {
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.sql(insertOrder), ms[0].Customer, ms[0].Cents); err != nil {
			return err
		}
		_, err := p.out.DispatchAll(ctx, tx, anys(ms)...)
		return err
	})
}

// plain is the yardstick's insert: the same columns from the same values, in one
// statement.
func (p *postgres) plain(ms []sold) (statement string, args []any, err error) {
	var values []string
	for _, m := range ms {
		id, body, err := m.encode()
		if err != nil {
			return "", nil, err
		}
		n := len(args)
		values = append(values, fmt.Sprintf("($%d, $%d, DEFAULT, $%d, $%d, $%d, $%d, $%d, $%d)", n+1, n+2, n+3, n+4, n+5, n+6, n+7, n+8))
		args = append(args, p.transport, outbox.Bucket(m.Customer, p.buckets), id.String(), m.MessageName(), m.PartitionKey(), "{}", body, time.Now())
	}
	return p.sql(`INSERT INTO {}.plain (transport, bucket, id, message_id, message_name, partition_key, headers, body, created_at) VALUES `) + strings.Join(values, ", "), args, nil
}

func (p *postgres) plainOneTrip(ctx context.Context, ms []sold) error {
	insert, args, err := p.plain(ms)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	b.Queue(insert, args...)
	return p.oneTrip(ctx, ms[0], b)
}

// oneTrip inserts an order, then sends a batch in one round trip with COMMIT.
func (p *postgres) oneTrip(ctx context.Context, m sold, batch *pgx.Batch) error {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, p.sql(insertOrder), m.Customer, m.Cents); err != nil {
		return err
	}
	batch.Queue("COMMIT")
	return conn.SendBatch(ctx, batch).Close()
}

func (p *postgres) plainSeparate(ctx context.Context, ms []sold) error {
	insert, args, err := p.plain(ms)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, p.sql(insertOrder), ms[0].Customer, ms[0].Cents); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, insert, args...)
		return err
	})
}
