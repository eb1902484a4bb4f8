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
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

func (p *postgres) load(ctx context.Context, r rows, into table) error {
	from := fmt.Sprintf(`SELECT i, 'key-' || k AS key, int8send(i) || int8send(k) || convert_to(repeat('x', 184), 'UTF8') AS body FROM (%s) AS n`, r.numbers("{}.deck"))
	switch into {
	case bare.table:
		return p.exec(ctx, fmt.Sprintf(`INSERT INTO {}.bare (message_name, body) SELECT 'order.placed', body FROM (%s) AS r ORDER BY i`, from))
	case unkeyedTable:
		return p.exec(ctx, fmt.Sprintf(`INSERT INTO {}.waybill_outbox_unkeyed (transport, message_id, message_name, body)
			SELECT %d, gen_random_uuid(), 'order.waiting', body FROM (%s) AS r ORDER BY i`, p.transport, from))
	case ideal.table:
		return p.exec(ctx, fmt.Sprintf(`INSERT INTO {}.ideal (message_id, message_name, partition_key, headers, body)
			SELECT gen_random_uuid(), 'order.placed', key, jsonb_build_object(), body FROM (%s) AS r ORDER BY i`, from))
	}
	return p.exec(ctx, fmt.Sprintf(`INSERT INTO {}.waybill_outbox (transport, bucket, message_id, message_name, partition_key, body)
		SELECT %d, (get_byte(sha256(convert_to(key, 'UTF8')), 0) * 256 + get_byte(sha256(convert_to(key, 'UTF8')), 1)) %% %d, gen_random_uuid(), 'order.placed', key, body
		FROM (%s) AS r ORDER BY i`, p.transport, p.buckets, from))
}

func (p *postgres) tidy(ctx context.Context, t table) error {
	return p.exec(ctx, "VACUUM ANALYZE {}."+string(t))
}

func (p *postgres) trace(ctx context.Context, oneIn int) error {
	err := p.exec(ctx, fmt.Sprintf(`UPDATE {}.waybill_outbox SET headers = jsonb_build_object('traceparent',
		'00-' || md5(id::text) || '-' || left(md5(id::text), 16) || CASE id %% %d WHEN 0 THEN '-01' ELSE '-00' END)`, oneIn))
	return errors.Join(err, p.tidy(ctx, outboxTable))
}

func (p *postgres) block(ctx context.Context, parked bool) error {
	state := map[bool]string{false: "retrying", true: "parked"}[parked]
	err := p.exec(ctx,
		fmt.Sprintf(`INSERT INTO {}.waybill_outbox_blocked (transport, partition_key, row_id, bucket, message_id, message_name, failures,
				next_attempt_at, last_error, state)
			SELECT DISTINCT ON (transport, bucket, partition_key) transport, partition_key, id, bucket, message_id, message_name, 1,
				now() + make_interval(secs => %d), '%v', '%s'
			FROM {}.waybill_outbox WHERE bucket < %d ORDER BY transport, bucket, partition_key, id`, int(retryIn.Seconds()), errRefused, state, outbox.ParkedBuckets),
		fmt.Sprintf(`INSERT INTO {}.waybill_outbox_version AS v (transport, bucket)
			SELECT %d, b FROM generate_series(0, %d) AS b ON CONFLICT (transport, bucket) DO UPDATE SET version = v.version + 1`, p.transport, p.buckets-1))
	if err == nil && parked {
		err = p.exec(ctx, fmt.Sprintf("UPDATE {}.waybill_outbox SET bucket = bucket + %[1]d WHERE bucket < %[1]d", outbox.ParkedBuckets))
	}
	return errors.Join(err, p.tidy(ctx, outboxTable), p.tidy(ctx, "waybill_outbox_blocked"))
}

func (p *postgres) byHand(ctx context.Context, y yardstick, ch *amqp.Channel, to string) (n int, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, p.sql(fmt.Sprintf(`SELECT %s FROM {}.%s %s LIMIT 500 FOR UPDATE SKIP LOCKED`, y.columns, y.table, y.order)))
		if err != nil {
			return err
		}
		var ids []int64
		var confirms []*amqp.DeferredConfirmation
		var r row
		_, err = pgx.ForEachRow(rows, y.columnsOf(&r), func() error {
			confirm, err := y.publish(r, ctx, ch, to)
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
		_, err = tx.Exec(ctx, p.sql(fmt.Sprintf(`DELETE FROM {}.%s WHERE id = ANY ($1)`, y.table)), ids)
		return err
	})
	return n, err
}

func (p *postgres) insert(ctx context.Context, y yardstick, ms []sold) error {
	b := &pgx.Batch{}
	for _, m := range ms {
		body, err := json.Marshal(m)
		if err != nil {
			return err
		}
		if y.table == bare.table {
			b.Queue(p.sql(`INSERT INTO {}.bare (message_name, body) VALUES ($1, $2)`), m.MessageName(), body)
			continue
		}
		id, err := waybill.NewMessageID()
		if err != nil {
			return err
		}
		b.Queue(p.sql(`INSERT INTO {}.ideal (message_id, message_name, partition_key, headers, body, created_at) VALUES ($1, $2, $3, $4, $5, $6)`),
			id.String(), m.MessageName(), m.PartitionKey(), "{}", body, time.Now())
	}
	return p.oneTrip(ctx, ms[0], b)
}

func (p *postgres) delay(ctx context.Context, ms []large) error {
	return p.out.InTx(ctx, func(ctx context.Context, tx waypg.Tx) error {
		for _, m := range ms {
			if _, err := tx.Dispatch(ctx, m, waybill.Delay(24*time.Hour)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *postgres) makeDue(ctx context.Context) error {
	return p.exec(ctx, "UPDATE {}.waybill_delayed SET due_at = now()")
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
