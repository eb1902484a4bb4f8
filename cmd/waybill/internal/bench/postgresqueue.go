package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

func (p *postgres) queue() (queueTransport, error) { return p.db.Queue("queue", waypg.QueueConfig{}) }
func (p *postgres) retries() worker.Store          { return p.db }

func (p *postgres) clearQueues(ctx context.Context) error {
	return p.exec(ctx, `CREATE TABLE IF NOT EXISTS {}.jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id uuid NOT NULL, message_name text NOT NULL,
		partition_key text NOT NULL, headers jsonb NOT NULL, body bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), attempts int NOT NULL DEFAULT 0,
		locked_until timestamptz NOT NULL DEFAULT '-infinity') WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0)`,
		"TRUNCATE {}.jobs", "TRUNCATE {}.waybill_queue", "TRUNCATE {}.waybill_retry", "TRUNCATE {}.waybill_failed_attempt", "TRUNCATE {}.waybill_failed")
}

func (p *postgres) fillQueue(ctx context.Context, into table, n, keys int) error {
	key, columns, values := "''", "", ""
	if keys > 0 {
		key = "'key-' || k"
	}
	if into == queueTable {
		columns, values = "queue, ", "'queue', "
	}
	return p.exec(ctx, fmt.Sprintf(`INSERT INTO {}.%s (%smessage_id, message_name, partition_key, headers, body)
		SELECT %sgen_random_uuid(), 'order.sold', %s, jsonb_build_object(), convert_to(json_build_object('customer', %[4]s, 'cents', i, 'note', '%s')::text, 'UTF8')
		FROM (%s) AS n ORDER BY i`, into, columns, values, key, note, rows{n: n, keys: max(keys, 1)}.numbers("{}.deck")))
}

func (p *postgres) enqueue(ctx context.Context, m sold) error {
	id, body, err := m.encode()
	if err != nil {
		return err
	}
	_, err = p.pool.Exec(ctx, p.sql(`INSERT INTO {}.jobs (message_id, message_name, partition_key, headers, body, created_at) VALUES ($1, $2, $3, $4, $5, $6)`),
		id.String(), m.MessageName(), m.PartitionKey(), "{}", body, time.Now())
	return err
}

func (p *postgres) claimJobs(ctx context.Context, n int) ([]jobRow, error) {
	rows, err := p.pool.Query(ctx, p.sql(`UPDATE {}.jobs SET locked_until = now() + interval '15 s', attempts = attempts + 1
		WHERE id = ANY (ARRAY(SELECT id FROM {}.jobs WHERE locked_until <= now() ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
		RETURNING id, message_name, body`), n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r jobRow, err error) { return r, row.Scan(&r.id, &r.name, &r.body) })
}

func (p *postgres) finishJobs(ctx context.Context, ids []int64) error {
	_, err := p.pool.Exec(ctx, p.sql("DELETE FROM {}.jobs WHERE id = ANY ($1)"), ids)
	return err
}
