package files

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

func handlings() []benchmark {
	return []benchmark{{"worker and inbox", "sqlite", "msg", goal{}, handling}}
}

// handling compares workers that take messages from a queue and write a row for
// each, once, into another file.
func handling(ctx context.Context, dir string) (*race, error) {
	broker, err := openFile(ctx, dir, "broker.db")
	if err != nil {
		return nil, err
	}
	db, err := openFile(ctx, dir, "billing.db", ordersTable)
	if err != nil {
		return nil, err
	}
	byHand, err := newHandWorker(ctx, broker, db)
	if err != nil {
		return nil, err
	}
	bus := waybill.NewBus("main")
	inbox.Handle(bus, db, "billing", func(ctx context.Context, tx *sql.Tx, m orderPlaced) error {
		_, err := tx.StmtContext(ctx, byHand.order).ExecContext(ctx, m.OrderID, m.CustomerID)
		return err
	})
	const messages = 2000
	return &race{
		waybill: func(ctx context.Context) (int, error) {
			queue, err := broker.Queue("events", waysqlite.QueueConfig{})
			if err != nil {
				return 0, err
			}
			w, err := worker.New(bus, queue, worker.Config{Transport: "events", Limit: messages})
			if err != nil {
				return 0, err
			}
			return messages, w.Run(ctx)
		},
		yardstick: byHand.run,
		pairs:     2,
		slice: func(ctx context.Context) error {
			return errors.Join(empty(ctx, db, "orders", "waybill_inbox"), empty(ctx, broker, "waybill_queue"), fill(ctx, broker, "waybill_queue", "queue", "events", messages))
		},
		close: func() error { return errors.Join(broker.Close(), db.Close()) },
	}, nil
}

// handWorker claims as many messages at once as a worker does, handles them one
// after another and acknowledges them together. It knows neither retries nor
// keys nor other workers.
type handWorker struct {
	broker, db      *sql.DB
	claim, ack      *sql.Stmt // on broker
	remember, order *sql.Stmt // on db
}

func newHandWorker(ctx context.Context, broker, db *waysqlite.DB) (*handWorker, error) {
	queue, err := prepare(ctx, broker,
		`UPDATE waybill_queue SET held = 1, held_until = ?, holder = x'01', lease = lease + 1
		 WHERE id IN (SELECT id FROM waybill_queue WHERE queue = 'events' AND held_until = 0 ORDER BY id LIMIT 40)
		 RETURNING id, message_id, body`,
		"DELETE FROM waybill_queue WHERE id = ?")
	if err != nil {
		return nil, err
	}
	effects, err := prepare(ctx, db,
		"INSERT INTO waybill_inbox (handler, dedup_key, message_id, processed_at) VALUES ('billing', ?, ?, ?) ON CONFLICT DO NOTHING", insertOrder)
	if err != nil {
		return nil, err
	}
	return &handWorker{broker.SQL(), db.SQL(), queue[0], queue[1], effects[0], effects[1]}, nil
}

type job struct {
	row  int64
	id   waybill.MessageID
	body []byte
}

func (w *handWorker) run(ctx context.Context) (total int, err error) {
	for {
		jobs, err := w.next(ctx)
		if err != nil || len(jobs) == 0 {
			return total, err
		}
		for _, j := range jobs {
			if err := w.handle(ctx, j); err != nil {
				return total, err
			}
		}
		if err := w.done(ctx, jobs); err != nil {
			return total, err
		}
		total += len(jobs)
	}
}

func (w *handWorker) next(ctx context.Context) ([]job, error) {
	rows, err := w.claim.QueryContext(ctx, time.Now().Add(15*time.Second).UnixMicro())
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var jobs []job
	for rows.Next() {
		var j job
		if err := rows.Scan(&j.row, &j.id, &j.body); err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, rows.Err()
}

func (w *handWorker) handle(ctx context.Context, j job) error {
	var m orderPlaced
	if err := json.Unmarshal(j.body, &m); err != nil {
		return err
	}
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	result, err := tx.StmtContext(ctx, w.remember).ExecContext(ctx, j.id.String(), j.id[:], time.Now().UnixMicro())
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return err // handled before
	}
	if _, err := tx.StmtContext(ctx, w.order).ExecContext(ctx, m.OrderID, m.CustomerID); err != nil {
		return err
	}
	return tx.Commit()
}

func (w *handWorker) done(ctx context.Context, jobs []job) error {
	tx, err := w.broker.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	ack := tx.StmtContext(ctx, w.ack)
	for _, j := range jobs {
		if _, err := ack.ExecContext(ctx, j.row); err != nil {
			return err
		}
	}
	return tx.Commit()
}
