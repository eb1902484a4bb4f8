package bench

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

func (p *mysql) load(ctx context.Context, r rows, ideal bool) error {
	table, columns, more := "{}outbox", ", lane, bucket", fmt.Sprintf(", %d, CONV(LEFT(SHA2(CONCAT('key-', k), 256), 4), 16, 10) %% %d", p.lane, p.buckets)
	if ideal {
		table, columns, more = "{}ideal", "", ""
	}
	// The ids are UUIDs that count.
	return p.exec(ctx, fmt.Sprintf(`INSERT INTO %s (message_id, message_name, partition_key, headers, body, created_at%s)
		SELECT UNHEX(CONCAT('019000000000700080', LPAD(HEX(i), 14, '0'))), 'order.placed', CONCAT('key-', k), JSON_OBJECT(),
			CONCAT(UNHEX(LPAD(HEX(i), 16, '0')), UNHEX(LPAD(HEX(k), 16, '0')), REPEAT('x', 184)), UTC_TIMESTAMP(6)%s
		FROM (%s) AS n ORDER BY i`, table, columns, more, r.numbers("{}deck")))
}

func (p *mysql) tidy(ctx context.Context, ideal bool) error {
	if ideal {
		return p.exec(ctx, "ANALYZE TABLE {}ideal")
	}
	return p.exec(ctx, "ANALYZE TABLE {}outbox")
}

func (p *mysql) ideal(ctx context.Context, ch *amqp.Channel, exchange string) (int, error) {
	tx, err := p.db.Pool().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	rows, err := tx.QueryContext(ctx, p.sql(`SELECT id, message_id, message_name, partition_key, headers, body, CAST(created_at AS CHAR) FROM {}ideal ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED`))
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	var ids []int64
	var confirms []*amqp.DeferredConfirmation
	for rows.Next() {
		var r row
		var message []byte
		var created string
		if err := rows.Scan(&r.id, &message, &r.name, &r.key, &r.headers, &r.body, &created); err != nil {
			return 0, err
		}
		copy(r.message[:], message)
		if r.created, err = time.Parse(time.DateTime, created); err != nil {
			return 0, err
		}
		confirm, err := r.publish(ctx, ch, exchange)
		if err != nil {
			return 0, err
		}
		ids, confirms = append(ids, r.id), append(confirms, confirm)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(ids) == 0 {
		return 0, err
	}
	if err := wait(ctx, confirms); err != nil {
		return 0, err
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return 0, err
	}
	// With WHERE id IN the server scans what others have locked: a deadlock.
	_, err = tx.ExecContext(ctx, p.sql(`DELETE i FROM JSON_TABLE(?, '$[*]' COLUMNS (id bigint PATH '$')) AS t STRAIGHT_JOIN {}ideal AS i ON i.id = t.id`), string(list))
	if err != nil {
		return 0, err
	}
	return len(ids), tx.Commit()
}

func (p *mysql) besides(ctx context.Context, m sold) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	id, err := waybill.NewMessageID()
	if err != nil {
		return err
	}
	return p.begin(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, p.sql(insertMySQLOrder), m.Customer, m.Cents); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, p.sql(`INSERT INTO {}ideal (message_id, message_name, partition_key, headers, body, created_at) VALUES (?, ?, ?, JSON_OBJECT(), ?, ?)`),
			id[:], m.MessageName(), m.PartitionKey(), body, time.Now().UTC())
		return err
	})
}

func (p *mysql) snapshot(ctx context.Context) (release func() error, err error) {
	tx, err := p.db.Pool().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, p.sql("SELECT count(*) FROM {}orders")); err != nil { // opens the read view
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx.Rollback, nil // which fails if the server has ended it meanwhile
}
