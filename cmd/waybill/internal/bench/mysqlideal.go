package bench

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

func (p *mysql) load(ctx context.Context, r rows, into table) error {
	columns, more, name := "", "", "order.placed"
	add := func(names, values string) { columns, more = columns+", "+names, more+", "+values }
	if into != bare.table { // message ids are UUIDs that end in the row number
		add("message_id, headers, created_at", "UNHEX(CONCAT('019000000000700080', LPAD(HEX(i), 14, '0'))), JSON_OBJECT(), UTC_TIMESTAMP(6)")
	}
	if into == outboxTable || into == ideal.table {
		add("partition_key", "CONCAT('key-', k)")
	}
	if into == outboxTable || into == unkeyedTable {
		add("transport", strconv.Itoa(p.transport))
	}
	if into == unkeyedTable {
		name = "order.waiting"
	}
	if into == outboxTable {
		add("bucket", fmt.Sprintf("CONV(LEFT(SHA2(CONCAT('key-', k), 256), 4), 16, 10) %% %d", p.buckets))
	}
	return p.exec(ctx, fmt.Sprintf(`INSERT INTO %s (message_name, body%s)
		SELECT '%s', CONCAT(UNHEX(LPAD(HEX(i), 16, '0')), UNHEX(LPAD(HEX(k), 16, '0')), REPEAT('x', 184))%s
		FROM (%s) AS n ORDER BY i`, p.name(into), columns, name, more, r.numbers("{}deck")))
}

func (p *mysql) tidy(ctx context.Context, t table) error {
	return p.exec(ctx, "ANALYZE TABLE "+p.name(t))
}

// purgeWait bounds the wait for the purge of moved rows, which an old transaction holds up.
const purgeWait = 20 * time.Second

// unpurged returns the number of transactions whose old rows InnoDB has yet to remove.
func (p *mysql) unpurged(ctx context.Context) (n int, err error) {
	err = p.db.Pool().QueryRowContext(ctx, "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'").Scan(&n)
	return n, err
}

// awaitPurge waits until there are no more of them than before.
func (p *mysql) awaitPurge(ctx context.Context, before int) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for start := time.Now(); time.Since(start) < purgeWait; {
		n, err := p.unpurged(ctx)
		if err != nil || n <= before {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	p.say("the server has not purged the load within %v, and claims read past it: an open transaction, or other programs, hold it up", purgeWait)
	return nil
}

func (p *mysql) trace(ctx context.Context, oneIn int) error {
	err := p.exec(ctx, fmt.Sprintf(`UPDATE {}outbox SET headers = JSON_OBJECT('traceparent',
		CONCAT('00-', MD5(id), '-', LEFT(MD5(id), 16), IF(id %% %d = 0, '-01', '-00'))) WHERE id > 0`, oneIn))
	return errors.Join(err, p.tidy(ctx, outboxTable))
}

func (p *mysql) block(ctx context.Context, parked bool) error {
	state := map[bool]string{false: "retrying", true: "parked"}[parked]
	before, err := p.unpurged(ctx)
	if err != nil {
		return err
	}
	err = p.exec(ctx,
		fmt.Sprintf(`INSERT INTO {}outbox_blocked (transport, partition_key, row_id, bucket, message_id, message_name, failures,
				first_failed_at, next_attempt_at, last_error, state)
			SELECT transport, partition_key, MIN(id), bucket, MIN(message_id), MIN(message_name), 1,
				UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL %d SECOND, '%v', '%s'
			FROM {}outbox WHERE id > 0 AND bucket < %d GROUP BY transport, bucket, partition_key`, int(retryIn.Seconds()), errRefused, state, outbox.ParkedBuckets),
		"UPDATE {}outbox_bucket SET blocked_version = blocked_version + 1 WHERE bucket >= 0")
	if err == nil && parked {
		err = p.exec(ctx, fmt.Sprintf("UPDATE {}outbox SET bucket = bucket + %[1]d WHERE id > 0 AND bucket < %[1]d", outbox.ParkedBuckets))
		if err == nil {
			err = p.awaitPurge(ctx, before)
		}
	}
	return errors.Join(err, p.tidy(ctx, "waybill_outbox_blocked"))
}

// name returns the name of a table, whose prefix replaces waybill_.
func (p *mysql) name(t table) string { return p.prefix + strings.TrimPrefix(string(t), "waybill_") }

func (p *mysql) byHand(ctx context.Context, y yardstick, ch *amqp.Channel, to string) (int, error) {
	tx, err := p.db.Pool().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	rows, err := tx.QueryContext(ctx, fmt.Sprintf(`SELECT %s FROM %s %s LIMIT 500 FOR UPDATE SKIP LOCKED`, y.columns, p.name(y.table), y.order))
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	var ids []int64
	var confirms []*amqp.DeferredConfirmation
	for rows.Next() {
		var r row
		if err := rows.Scan(scanners(y.columnsOf(&r))...); err != nil {
			return 0, err
		}
		confirm, err := y.publish(r, ctx, ch, to)
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
	// With WHERE id IN the server scans rows locked by other transactions: a deadlock.
	_, err = tx.ExecContext(ctx, fmt.Sprintf(`DELETE i FROM JSON_TABLE(?, '$[*]' COLUMNS (id bigint PATH '$')) AS t STRAIGHT_JOIN %s AS i ON i.id = t.id`, p.name(y.table)), string(list))
	if err != nil {
		return 0, err
	}
	return len(ids), tx.Commit()
}

// scanners replaces destinations that database/sql cannot scan into.
func scanners(columns []any) []any {
	for i, c := range columns {
		switch c := c.(type) {
		case *[16]byte:
			columns[i] = (*waybill.MessageID)(c)
		case *time.Time:
			columns[i] = (*utc)(c)
		}
	}
	return columns
}

// utc scans a DATETIME, which the server sends as text in UTC.
type utc time.Time

func (t *utc) Scan(src any) error {
	text, _ := src.([]byte)
	parsed, err := time.Parse(time.DateTime, string(text))
	*t = utc(parsed)
	return err
}

func (p *mysql) insert(ctx context.Context, y yardstick, ms []sold) error {
	return p.begin(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, p.sql(insertMySQLOrder), ms[0].Customer, ms[0].Cents); err != nil {
			return err
		}
		for _, m := range ms {
			id, body, err := m.encode()
			if err != nil {
				return err
			}
			if y.table == bare.table {
				_, err = tx.ExecContext(ctx, p.sql(`INSERT INTO {}bare (message_name, body) VALUES (?, ?)`), m.MessageName(), body)
			} else {
				_, err = tx.ExecContext(ctx, p.sql(`INSERT INTO {}ideal (message_id, message_name, partition_key, headers, body, created_at) VALUES (?, ?, ?, JSON_OBJECT(), ?, ?)`),
					id[:], m.MessageName(), m.PartitionKey(), body, time.Now().UTC())
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *mysql) delay(ctx context.Context, ms []large) error {
	return p.out.InTx(ctx, func(ctx context.Context, tx waymysql.Tx) error {
		for _, m := range ms {
			if _, err := tx.Dispatch(ctx, m, waybill.Delay(24*time.Hour)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *mysql) makeDue(ctx context.Context) error {
	return p.exec(ctx, "UPDATE {}delayed SET due_at = UTC_TIMESTAMP(6)")
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
