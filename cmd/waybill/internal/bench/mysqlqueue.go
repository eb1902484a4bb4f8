package bench

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/worker"
)

func (p *mysql) queue() (queueTransport, error) { return p.db.Queue("queue", waymysql.QueueConfig{}) }
func (p *mysql) retries() worker.Store          { return p.db }

func (p *mysql) clearQueues(ctx context.Context) error {
	return p.exec(ctx, `CREATE TABLE IF NOT EXISTS {}jobs (id bigint AUTO_INCREMENT PRIMARY KEY, message_id binary(16) NOT NULL, message_name varchar(190) NOT NULL,
		partition_key varchar(255) NOT NULL, headers json NOT NULL, body longblob NOT NULL, created_at datetime(6) NOT NULL, attempts int NOT NULL DEFAULT 0,
		locked_until datetime(6) NOT NULL DEFAULT '2000-01-01')`,
		"TRUNCATE {}jobs", "TRUNCATE {}queue", "TRUNCATE {}retry", "TRUNCATE {}failed_attempt", "TRUNCATE {}failed")
}

func (p *mysql) fillQueue(ctx context.Context, into table, n, keys int) error {
	key, columns, values := "''", "", ""
	if keys > 0 {
		key = "CONCAT('key-', k)"
	}
	if into == queueTable {
		columns, values = "queue, ", "'queue', "
	}
	return p.exec(ctx, fmt.Sprintf(`INSERT INTO %s (%smessage_id, message_name, partition_key, headers, body, created_at)
		SELECT %sUNHEX(CONCAT('019000000000700080', LPAD(HEX(i), 14, '0'))), 'order.sold', %s, JSON_OBJECT(),
		       JSON_OBJECT('customer', %[4]s, 'cents', i, 'note', '%s'), UTC_TIMESTAMP(6)
		FROM (%s) AS n ORDER BY i`, p.name(into), columns, values, key, note, rows{n: n, keys: max(keys, 1)}.numbers("{}deck")))
}

func (p *mysql) enqueue(ctx context.Context, m sold) error {
	id, body, err := m.encode()
	if err != nil {
		return err
	}
	_, err = p.db.Pool().ExecContext(ctx, p.sql(`INSERT INTO {}jobs (message_id, message_name, partition_key, headers, body, created_at) VALUES (?, ?, ?, JSON_OBJECT(), ?, ?)`),
		id[:], m.MessageName(), m.PartitionKey(), body, time.Now().UTC())
	return err
}

func (p *mysql) claimJobs(ctx context.Context, n int) (found []jobRow, err error) {
	tx, err := p.db.Pool().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	rows, err := tx.QueryContext(ctx, p.sql(`SELECT id, message_name, body FROM {}jobs WHERE locked_until <= UTC_TIMESTAMP(6) ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED`), n)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var ids []int64
	for rows.Next() {
		var r jobRow
		if err := rows.Scan(&r.id, &r.name, &r.body); err != nil {
			return nil, err
		}
		found, ids = append(found, r), append(ids, r.id)
	}
	if err := rows.Err(); err != nil || len(found) == 0 {
		return nil, err
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, p.sql(`UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id bigint PATH '$')) AS t STRAIGHT_JOIN {}jobs AS j FORCE INDEX (PRIMARY) ON j.id = t.id
		SET j.locked_until = UTC_TIMESTAMP(6) + INTERVAL 15 SECOND, j.attempts = j.attempts + 1`), string(list)); err != nil {
		return nil, err
	}
	return found, tx.Commit()
}

func (p *mysql) finishJobs(ctx context.Context, ids []int64) error {
	list, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	// With WHERE id IN the server scans rows locked by other transactions: a deadlock.
	_, err = p.db.Pool().ExecContext(ctx, p.sql(`DELETE j FROM JSON_TABLE(?, '$[*]' COLUMNS (id bigint PATH '$')) AS t STRAIGHT_JOIN {}jobs AS j FORCE INDEX (PRIMARY) ON j.id = t.id`), string(list))
	return err
}
