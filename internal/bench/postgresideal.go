package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

func (p *postgres) load(ctx context.Context, r rows, ideal bool) error {
	from := fmt.Sprintf(`SELECT i, 'key-' || k AS key, int8send(i) || int8send(k) || convert_to(repeat('x', 184), 'UTF8') AS body FROM (%s) AS n`, r.numbers("{}.deck"))
	if ideal {
		return p.exec(ctx, fmt.Sprintf(`INSERT INTO {}.ideal (message_id, message_name, partition_key, headers, body)
			SELECT gen_random_uuid(), 'order.placed', key, jsonb_build_object(), body FROM (%s) AS r ORDER BY i`, from))
	}
	return p.exec(ctx, fmt.Sprintf(`INSERT INTO {}.waybill_outbox (lane, bucket, message_id, message_name, partition_key, body)
		SELECT %d, (get_byte(sha256(convert_to(key, 'UTF8')), 0) * 256 + get_byte(sha256(convert_to(key, 'UTF8')), 1)) %% %d, gen_random_uuid(), 'order.placed', key, body
		FROM (%s) AS r ORDER BY i`, p.lane, p.buckets, from))
}

func (p *postgres) tidy(ctx context.Context, ideal bool) error {
	if ideal {
		return p.exec(ctx, "VACUUM ANALYZE {}.ideal")
	}
	return p.exec(ctx, "VACUUM ANALYZE {}.waybill_outbox")
}

func (p *postgres) ideal(ctx context.Context, ch *amqp.Channel, exchange string) (n int, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, p.sql(`SELECT id, message_id, message_name, partition_key, headers, body, created_at FROM {}.ideal ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED`))
		if err != nil {
			return err
		}
		var ids []int64
		var confirms []*amqp.DeferredConfirmation
		var r row
		_, err = pgx.ForEachRow(rows, []any{&r.id, &r.message, &r.name, &r.key, &r.headers, &r.body, &r.created}, func() error {
			confirm, err := r.publish(ctx, ch, exchange)
			ids, confirms = append(ids, r.id), append(confirms, confirm)
			return err
		})
		if err != nil {
			return err
		}
		if n = len(ids); n == 0 {
			return nil
		}
		if err := wait(ctx, confirms); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, p.sql(`DELETE FROM {}.ideal WHERE id = ANY ($1)`), ids)
		return err
	})
	return n, err
}

func (p *postgres) besides(ctx context.Context, m sold) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	id, err := waybill.NewMessageID()
	if err != nil {
		return err
	}
	return p.oneTrip(ctx, m, p.sql(`INSERT INTO {}.ideal (message_id, message_name, partition_key, headers, body, created_at) VALUES ($1, $2, $3, $4, $5, $6)`),
		[]any{id.String(), m.MessageName(), m.PartitionKey(), "{}", body, time.Now()})
}

func (p *postgres) snapshot(ctx context.Context) (release func() error, err error) {
	tx, err := p.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	release = func() error { return tx.Rollback(context.WithoutCancel(ctx)) } // fails if the server has ended it meanwhile
	if _, err := tx.Exec(ctx, p.sql("SELECT count(*) FROM {}.orders")); err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}
