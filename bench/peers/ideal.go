package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofrs/uuid/v5"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// ideal is no library: the least that moves rows safely, written by hand. A
// batch is claimed, published, confirmed and deleted in one transaction. It
// works alone, keeps no order beyond that, retries nothing and blocks nothing.
type ideal struct {
	db     *database
	broker *broker
	keys   int
}

func prepareIdeal(ctx context.Context, db *database) error {
	return db.exec(ctx, `CREATE TABLE ideal (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id uuid NOT NULL,
		message_name text NOT NULL, partition_key text NOT NULL, headers jsonb NOT NULL, body bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`)
}

func (p *ideal) name() string { return "ideal, written by hand" }

func (p *ideal) load(ctx context.Context, n int) error {
	if err := p.db.exec(ctx, "TRUNCATE ideal"); err != nil {
		return err
	}
	err := batches(n, p.keys, loadBatch, func(ms []placed) error {
		batch := &pgx.Batch{}
		for _, m := range ms {
			body, err := m.body()
			if err != nil {
				return err
			}
			batch.Queue(`INSERT INTO ideal (message_id, message_name, partition_key, headers, body) VALUES (gen_random_uuid(), $1, $2, '{}', $3)`, messageName, m.Key, body)
		}
		return p.db.pool.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return err
	}
	return p.db.exec(ctx, "VACUUM ANALYZE ideal")
}

func (p *ideal) relay(ctx context.Context, _ int) (_ time.Duration, err error) {
	conn, ch, err := p.broker.confirming()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	start := time.Now()
	for {
		n, err := p.batch(ctx, ch)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return time.Since(start), nil
		}
	}
}

func (p *ideal) batch(ctx context.Context, ch *amqp.Channel) (n int, err error) {
	err = pgx.BeginFunc(ctx, p.db.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id, message_id, message_name, partition_key, headers, body, created_at FROM ideal ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED`)
		if err != nil {
			return err
		}
		var (
			id                 int64
			message            [16]byte
			name, key, headers string
			body               []byte
			created            time.Time
			ids                []int64
			confirms           []*amqp.DeferredConfirmation
		)
		_, err = pgx.ForEachRow(rows, []any{&id, &message, &name, &key, &headers, &body, &created}, func() error {
			text := uuid.UUID(message).String()
			// What waybill's consumers are promised: see docs/wire.md.
			confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, p.broker.name, name, true, false, amqp.Publishing{
				MessageId: text, Type: name, ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: created, Body: body,
			})
			ids, confirms = append(ids, id), append(confirms, confirm)
			return err
		})
		if n = len(ids); n == 0 || err != nil {
			return err
		}
		for _, c := range confirms {
			if acked, err := c.WaitContext(ctx); err != nil || !acked {
				return fmt.Errorf("confirm: %t, %w", acked, err)
			}
		}
		_, err = tx.Exec(ctx, `DELETE FROM ideal WHERE id = ANY ($1)`, ids)
		return err
	})
	return n, err
}
