package files

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

func drains() []benchmark {
	return []benchmark{
		{"relay, 100,000 to a queue", "sqlite", "msg", goal{}, func(ctx context.Context, dir string) (*race, error) { return drain(ctx, dir, true) }},
		{"relay, 100,000 confirmed at once", "sqlite", "msg", goal{}, func(ctx context.Context, dir string) (*race, error) { return drain(ctx, dir, false) }},
	}
}

const backlog = 100_000

// drain compares relays that empty an outbox into a queue of another file, or
// into nothing.
func drain(ctx context.Context, dir string, toQueue bool) (*race, error) {
	db, err := openFile(ctx, dir, "orders.db")
	if err != nil {
		return nil, err
	}
	broker, err := openFile(ctx, dir, "broker.db")
	if err != nil {
		return nil, err
	}
	if err := db.AddTransports(ctx, outbox.DefaultTransport); err != nil {
		return nil, err
	}
	var transport int64
	if err := db.SQL().QueryRowContext(ctx, "SELECT id FROM waybill_transport WHERE name = ?", outbox.DefaultTransport).Scan(&transport); err != nil {
		return nil, err
	}
	to, byHandTo := outbox.Publisher(confirming{}), (*sql.DB)(nil)
	if toQueue {
		byHandTo = broker.SQL()
		if to, err = broker.Queue("events", waysqlite.QueueConfig{}); err != nil {
			return nil, err
		}
	}
	relay, err := outbox.NewRelay(db, to, outbox.RelayConfig{Drain: true})
	if err != nil {
		return nil, err
	}
	return &race{
		waybill: func(ctx context.Context) (int, error) {
			if err := relay.Run(ctx); err != nil {
				return 0, err
			}
			left, err := db.Backlog(ctx, outbox.DefaultTransport)
			if err == nil && left.Pending > 0 {
				err = fmt.Errorf("%d messages were not relayed", left.Pending)
			}
			return backlog, err
		},
		yardstick: func(ctx context.Context) (int, error) { return relayByHand(ctx, db.SQL(), byHandTo, transport) },
		pairs:     1,
		slice: func(ctx context.Context) error {
			return errors.Join(empty(ctx, broker, "waybill_queue"), empty(ctx, db, "waybill_outbox"), fill(ctx, db, "waybill_outbox", "transport", transport, backlog))
		},
		close: func() error { return errors.Join(db.Close(), broker.Close()) },
	}, nil
}

// confirming is a broker that does nothing at all.
type confirming struct{}

func (confirming) Traits() outbox.PublisherTraits { return outbox.PublisherTraits{} }
func (confirming) Connect(context.Context) error  { return nil }
func (confirming) Isolated() outbox.Publisher     { return nil }

func (confirming) Publish(_ context.Context, items []outbox.Item, results chan<- outbox.Result) {
	for _, item := range items {
		results <- outbox.Result{Seq: item.Seq}
	}
}

// relayByHand is what one would write in an afternoon: no refused messages, no
// blocked keys, no delays, one relay. Without to, messages count as delivered.
func relayByHand(ctx context.Context, db, to *sql.DB, transport int64) (total int, err error) {
	type row struct {
		at            int64
		id            []byte
		name, key     string
		headers, body []byte
		created       int64
	}
	for {
		rows, err := db.QueryContext(ctx, `SELECT id, message_id, message_name, partition_key, headers, body, created_at
			FROM waybill_outbox WHERE transport = ? ORDER BY id LIMIT 500`, transport)
		if err != nil {
			return total, err
		}
		var batch []row
		for rows.Next() {
			var r row
			if err := rows.Scan(&r.at, &r.id, &r.name, &r.key, &r.headers, &r.body, &r.created); err != nil {
				return total, err
			}
			batch = append(batch, r)
		}
		if err := rows.Err(); err != nil || len(batch) == 0 {
			return total, err
		}
		if to != nil {
			tx, err := to.BeginTx(ctx, nil)
			if err != nil {
				return total, err
			}
			insert, err := tx.PrepareContext(ctx, `INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, headers, body, created_at)
				VALUES ('events', ?, ?, ?, ?, ?, ?)`)
			if err != nil {
				return total, err
			}
			for _, r := range batch {
				if _, err := insert.ExecContext(ctx, r.id, r.name, r.key, string(r.headers), r.body, r.created); err != nil {
					return total, err
				}
			}
			if err := tx.Commit(); err != nil {
				return total, err
			}
		}
		if _, err := db.ExecContext(ctx, "DELETE FROM waybill_outbox WHERE transport = ? AND id <= ?", transport, batch[len(batch)-1].at); err != nil {
			return total, err
		}
		total += len(batch)
	}
}
