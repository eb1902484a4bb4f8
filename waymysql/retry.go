package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// RetryQueue implements worker.Store.
func (db *DB) RetryQueue(transport string) (worker.RetryQueue, error) {
	q, err := sqlcore.NewRetries(retryStore{db}, &db.retries, transport, 0)
	if err != nil {
		return nil, fmt.Errorf("waymysql: retry queue: %w", err)
	}
	return q, nil
}

// retryStore implements sqlcore.RetryStore.
type retryStore struct{ db *DB }

// Ready implements sqlcore.ReceiverStore.
func (s retryStore) Ready(ctx context.Context) error { return s.db.writer(ctx) }

// Any implements sqlcore.ReceiverStore.
func (s retryStore) Any(ctx context.Context, queue string) (bool, error) {
	return s.db.anyRows(ctx, s.db.retryQueue, queue)
}

// Claim implements sqlcore.ReceiverStore.
func (s retryStore) Claim(ctx context.Context, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	return s.db.claimRows(ctx, s.db.retryQueue, to, fn)
}

// Settle implements sqlcore.ReceiverStore.
func (s retryStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	set := s.db.retryQueue
	if c.Verb == "ack" {
		set = s.db.retry
	}
	return s.db.settleRows(ctx, s.db.retryQueue, set.Query(c.Verb), by, c, delivered)
}

// Contains implements sqlcore.RetryStore.
func (s retryStore) Contains(ctx context.Context, queue string, ids []waybill.MessageID, keys []string) (found []bool, err error) {
	pairs := make([][2]string, len(ids))
	for i, id := range ids {
		pairs[i] = [2]string{hexID(id), fmt.Sprintf("%x", keys[i])}
	}
	err = each(ctx, s.db.pool, s.db.retry.Query("contains"), scanInto(&found), []byte(queue), []byte(queue), jsonOf(pairs))
	return found, translate(err)
}

// retryGates is the transport whose dispatch locks are those of the retry queues.
const retryGates = -2

// Add implements sqlcore.RetryStore. The locks of the keys make the order of ids that of
// the commits, and no other transaction adds the same messages meanwhile.
func (s retryStore) Add(ctx context.Context, queue string, rows []sqlcore.RetryRow) error {
	var locks []gate
	asked := make([][2]any, len(rows))
	for i, r := range rows {
		asked[i][0] = hexID(r.Record.ID)
		if r.Attempt != nil {
			asked[i][1] = stamp(r.Attempt.At)
		}
		g := gate{transport: retryGates, bucket: int16(outbox.Bucket(cmp.Or(r.Record.Key, hexID(r.Record.ID)), queueBuckets))}
		if !slices.Contains(locks, g) {
			locks = append(locks, g)
		}
	}
	slices.SortFunc(locks, gate.compare)
	return s.db.inQueueTx(ctx, s.db.retry, func(tx *queueTx) error {
		tx.next = append(tx.next, s.db.locking(locks))
		before := make([]pastAttempts, len(rows))
		tx.query("known", func(rows *sql.Rows) error {
			var n int
			var h pastAttempts
			err := rows.Scan(&n, &h.contained, &h.last, &h.recorded)
			before[n] = h
			return err
		}, []byte(queue), []byte(queue), []byte(queue), jsonOf(asked))
		if err := tx.send(ctx); err != nil {
			return err
		}
		tx.next = append(tx.next, s.adding(queue, rows, before)...)
		return nil
	})
}

// pastAttempts are those of a message before it is added to a retry queue: whether the queue has it, the
// number of its last attempt, and whether the present one is recorded.
type pastAttempts struct {
	contained bool
	last      int
	recorded  bool
}

// adding returns the statements that add rows: several at once, unless they are dead letters.
func (s retryStore) adding(queue string, rows []sqlcore.RetryRow, before []pastAttempts) []statement {
	all := []statement{}
	messages, attempts := repeating(s.db.retry.Query("add")), repeating(s.db.retry.Query("add_attempts"))
	flush := func() {
		all = append(append(all, messages.flush()...), attempts.flush()...)
	}
	added := map[waybill.MessageID]bool{} // by this transaction; false if it is a dead letter now
	for i, r := range rows {
		rec, a, h := r.Record, r.Attempt, before[i]
		contained, again := added[rec.ID]
		if h.contained || contained {
			continue
		}
		added[rec.ID] = r.DeadLetters == ""
		of, size := []any{[]byte(queue), literals(string(rec.ID[:]))}, len(rec.Body)+len(r.Headers)
		if again || r.DeadLetters != "" || messages.full(size) {
			flush()
		}
		switch {
		case again || r.DeadLetters != "":
			all = append(all, s.attempt(queue, r)...)
		case a != nil && !h.recorded:
			attempts.add(rec.Name, size, slices.Concat(of, []any{max(r.Failures, h.last) + 1, stamp(a.At), a.Worker, a.Handler, a.Type, a.Error, a.Stack, a.Fingerprint})...)
		}
		if r.DeadLetters != "" {
			all = append(all, s.bury(queue, r))
			continue
		}
		held, after := holding(r)
		messages.add(rec.Name, size, slices.Concat(of, []any{[]byte(rec.Name), []byte(rec.Key), r.Headers, rec.Body, stamp(rec.DispatchedAt), failures(r), held, after})...)
	}
	flush()
	return all
}

// failures is how often a message has failed.
func failures(r sqlcore.RetryRow) int {
	if r.Attempt == nil {
		return r.Failures
	}
	return r.Failures + 1
}

// holding returns the values of held, and of held_until as microseconds from now. NULL is
// for claimable and parked rows.
func holding(r sqlcore.RetryRow) (held sqlcore.Held, after any) {
	switch {
	case r.Parked:
		return sqlcore.InFlight, nil
	case r.Delay > 0:
		return sqlcore.InFlight, r.Delay.Microseconds()
	}
	return sqlcore.Claimable, nil
}

// attempt returns the statement that records the failed attempt, if there is one.
func (s retryStore) attempt(queue string, r sqlcore.RetryRow) []statement {
	a := r.Attempt
	if a == nil {
		return nil
	}
	of := []any{[]byte(queue), hexID(r.Record.ID)}
	at := stamp(a.At)
	args := slices.Concat(of, []any{failures(r), at, a.Worker, a.Handler, a.Type, a.Error, a.Stack, a.Fingerprint}, of, []any{at})
	return []statement{s.inserting(r, "attempt", args...)}
}

// bury returns the statement that makes a message a dead letter.
func (s retryStore) bury(queue string, r sqlcore.RetryRow) statement {
	rec := r.Record
	of := []any{[]byte(queue), hexID(rec.ID)}
	args := []any{[]byte(r.DeadLetters), []byte(rec.Name), []byte(rec.Key), r.Headers, rec.Body, stamp(rec.DispatchedAt), failures(r)}
	return s.inserting(r, "bury", slices.Concat(args, of, of)...)
}

func (s retryStore) inserting(r sqlcore.RetryRow, name string, args ...any) statement {
	return statement{text: s.db.retry.Query(name), args: args, inserts: r.Record.Name, bytes: len(r.Record.Body) + len(r.Headers)}
}

// Move implements sqlcore.RetryStore.
func (s retryStore) Move(ctx context.Context, by sqlcore.Consumer, rows []sqlcore.RetryRow) (map[sqlcore.DeliveredRow]bool, error) {
	delivered := make([]sqlcore.DeliveredRow, len(rows))
	for i, r := range rows {
		delivered[i] = r.Row
	}
	moved := map[sqlcore.DeliveredRow]bool{}
	return moved, s.db.inQueueTx(ctx, s.db.retryQueue, func(tx *queueTx) error {
		tx.lockLeased(by, delivered, moved)
		if err := tx.send(ctx); err != nil {
			return err
		}
		var freed []sqlcore.DeliveredRow
		for _, r := range rows {
			if !moved[r.Row] {
				continue
			}
			tx.next = append(tx.next, s.attempt(by.Queue, r)...)
			if r.DeadLetters != "" {
				freed = append(freed, r.Row)
				tx.next = append(tx.next, s.bury(by.Queue, r))
				tx.exec(s.db.retry.Query("remove"), r.Row.ID)
				continue
			}
			held, after := holding(r)
			tx.next = append(tx.next, s.inserting(r, "move", failures(r), r.Headers, held, after, r.Row.ID))
		}
		return tx.freeNext(ctx, by.Queue, freed)
	})
}

// Begin implements sqlcore.RetryStore.
func (s retryStore) Begin(ctx context.Context, by sqlcore.Consumer, row sqlcore.DeliveredRow) (crashes int, err error) {
	leased := []any{row.ID, row.Lease, hexID(by.Holder)}
	if _, err := s.db.pool.ExecContext(ctx, s.db.retry.Query("begin"), leased...); err != nil {
		return 0, translate(err)
	}
	err = s.db.pool.QueryRowContext(ctx, s.db.retry.Query("crashes"), leased...).Scan(&crashes)
	if errors.Is(err, sql.ErrNoRows) {
		err = waybill.ErrLeaseLost
	}
	return crashes, translate(err)
}
