package waypg

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/internal/readpos"
)

// lockAndRead locks buckets and reads them in one statement, for the mutant
// lock-and-read-at-once.
func (c *claim) lockAndRead(ctx context.Context, begin *pgx.Batch, marks []int64) (server server, err error) {
	results := c.conn.SendBatch(ctx, begin)
	server, err = scanBegin(results)
	if closing := results.Close(); err != nil || closing != nil {
		return server, err
	}
	tables := qualified(c.at.schema, c.db.prefix)
	rows, err := c.conn.Query(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT b.bucket FROM `+tables+`outbox_bucket AS b,
			       LATERAL (SELECT 1 FROM `+tables+`outbox AS o WHERE o.transport = b.transport AND o.bucket = b.bucket AND o.id > ($2::bigint[])[b.bucket + 1] LIMIT 1) AS any_row
			WHERE  b.transport = $1::smallint AND NOT EXISTS (SELECT 1 FROM `+tables+`meta AS m WHERE m.name = 'relays_paused_until' AND m.value::timestamptz > now())
			LIMIT  32 FOR UPDATE OF b SKIP LOCKED),
		     set AS MATERIALIZED (SELECT set_config('waybill.locked', coalesce(array_agg(bucket)::text, '{}'), true) FROM locked)
		SELECT true, l.bucket, o.ctid, o.id, o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at, false, NULL::bigint
		FROM   set, locked AS l, LATERAL (SELECT e.ctid, e.* FROM `+tables+`outbox AS e
		       WHERE e.transport = $1::smallint AND e.bucket = l.bucket AND e.id > ($2::bigint[])[l.bucket + 1] ORDER BY e.id LIMIT 20) AS o
		ORDER  BY l.bucket, o.id`, c.transport, marks)
	if err != nil {
		return server, err
	}
	defer rows.Close()
	for rows.Next() {
		r, current := readpos.Row{}, false
		if err := scanRow(rows, &current, &r); err != nil {
			return server, err
		}
		c.atOnce = append(c.atOnce, r)
	}
	return server, rows.Err()
}
