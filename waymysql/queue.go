package waymysql

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// QueueConfig tunes a Queue. The zero value is fit for production.
type QueueConfig struct {
	// Lease is how long a delivery is leased before it must be renewed; zero means
	// 15 s, less than 50 ms is refused. The messages of a receiver that died come
	// again after that.
	Lease time.Duration
}

// A Queue is a transport kept in a table: queue://NAME. It sends, publishes for
// a relay and receives; any number of processes may. A key's messages are delivered
// to one receiver at a time, in order, and no more of them before the last are
// settled. Between looks at an empty queue Receive waits from 5 to 250 ms; a
// commit in this process ends the wait. It has the methods of waybill.Sender,
// waybill.Receiver and outbox.Publisher, and is safe for
// concurrent use.
type Queue struct{ *queue }

type queue = sqlcore.Queue // embedded by a name that is not exported

var (
	_ waybill.Sender   = (*Queue)(nil)
	_ waybill.Receiver = (*Queue)(nil)
	_ outbox.Publisher = (*Queue)(nil)
)

// Queue returns the queue of that name. Each call returns another receiver.
func (db *DB) Queue(name string, cfg QueueConfig) (*Queue, error) {
	q, err := sqlcore.NewQueue(queueStore{db}, &db.wakes, name, cfg.Lease)
	if err != nil {
		return nil, fmt.Errorf("waymysql: %w", err)
	}
	return &Queue{q}, nil
}

// queueStore implements sqlcore.QueueStore.
type queueStore struct{ db *DB }

func (s queueStore) Ready(ctx context.Context) error { return s.db.writer(ctx) }

func (queueStore) Refuses(err error) bool { return refusesRecord(err) }

// Insert implements sqlcore.QueueStore.
func (s queueStore) Insert(ctx context.Context, rows []outbox.Row) error {
	return translate(s.db.inTx(ctx, func(tx *sql.Tx) error { return s.db.insert(ctx, tx, rows) }))
}

// turns is how many rows of the gate table claimers of queues share.
const turns = 64

// turn returns the row that claimers of a queue lock.
func turn(queue string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(queue))
	return int(h.Sum32() % turns)
}

// Claim implements sqlcore.QueueStore.
func (s queueStore) Claim(ctx context.Context, to sqlcore.Consumer, limit int) (delivered []*waybill.Delivery, err error) {
	if err := s.db.promote(ctx); err != nil {
		return nil, translate(err)
	}
	if ids, err := s.free(ctx, s.db.pool, to.Queue, 1); err != nil || len(ids) == 0 {
		return nil, translate(err) // without waiting for a turn
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), to.Lease)
	defer cancel()
	err = s.db.inTx(ctx, func(tx *sql.Tx) error {
		var locked int
		if err := tx.QueryRowContext(ctx, s.db.queue.Query("turn"), turn(to.Queue)).Scan(&locked); err != nil {
			return err
		}
		ids, err := s.free(ctx, tx, to.Queue, limit)
		if err != nil || len(ids) == 0 {
			return err
		}
		delivered, err = s.lock(ctx, tx, ids)
		if err != nil || len(delivered) == 0 {
			return err
		}
		ids = ids[:0]
		for _, d := range delivered {
			ids = append(ids, d.Tag.(sqlcore.DeliveredRow).ID)
		}
		_, err = tx.ExecContext(ctx, s.db.queue.Query("lease"), jsonIDs(ids), to.Lease.Microseconds(), hexID(to.Holder))
		return err
	})
	if err != nil {
		return nil, translate(err)
	}
	return delivered, nil
}

// free returns the ids of rows that may be leased.
func (s queueStore) free(ctx context.Context, from querier, queue string, limit int) (ids []int64, err error) {
	err = each(ctx, from, s.db.queue.Query("free"), func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	}, []byte(queue), limit)
	return ids, err
}

// lock reads rows that were free just now, and locks them. A row that is held
// after all was settled late, in the moment between, by its last holder: its key
// is left alone.
func (s queueStore) lock(ctx context.Context, tx *sql.Tx, ids []int64) (delivered []*waybill.Delivery, err error) {
	waits := map[string]bool{}
	err = each(ctx, tx, s.db.queue.Query("lock"), func(rows *sql.Rows) error {
		rec := &waybill.Record{}
		d := &waybill.Delivery{Record: rec}
		var l sqlcore.DeliveredRow
		var meta string
		var held bool
		if err := rows.Scan(&l.ID, &held, id{&rec.ID}, &rec.Name, &rec.Key, &meta, &rec.Body, moment{&rec.DispatchedAt}, &d.Failures, &l.Lease); err != nil {
			return err
		}
		if waits[rec.Key] || held {
			waits[rec.Key] = rec.Key != ""
			return nil
		}
		rec.Problem = headers.Decode(rec, meta)
		d.Tag = l
		delivered = append(delivered, d)
		return nil
	}, jsonIDs(ids))
	return delivered, err
}

// Settle implements sqlcore.QueueStore. It locks the rows, and changes those whose lease
// is the last.
func (s queueStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (settled map[sqlcore.DeliveredRow]bool, err error) {
	ids := make([]int64, len(delivered))
	for i, l := range delivered {
		ids[i] = l.ID
	}
	err = s.db.inTx(ctx, func(tx *sql.Tx) error {
		last := map[sqlcore.DeliveredRow]bool{}
		err := each(ctx, tx, s.db.queue.Query("leases"), func(rows *sql.Rows) error {
			var l sqlcore.DeliveredRow
			err := rows.Scan(&l.ID, &l.Lease)
			last[l] = true
			return err
		}, jsonIDs(ids), hexID(by.Holder))
		if err != nil {
			return err
		}
		settled = map[sqlcore.DeliveredRow]bool{}
		var ours []int64
		for _, l := range delivered {
			if last[l] {
				settled[l], ours = true, append(ours, l.ID)
			}
		}
		if len(ours) == 0 {
			return nil
		}
		args := []any{jsonIDs(ours)}
		switch c.Verb {
		case "renew":
			args = append(args, c.After.Microseconds())
		case "retry":
			args = append(args, c.Headers, c.After.Microseconds())
		}
		_, err = tx.ExecContext(ctx, s.db.queue.Query(c.Verb), args...)
		return err
	})
	return settled, translate(err)
}
