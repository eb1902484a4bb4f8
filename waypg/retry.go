package waypg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gofrs/uuid/v5"
	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// RetryQueue implements worker.Store.
func (db *DB) RetryQueue(transport string) (worker.RetryQueue, error) {
	q, err := sqlcore.NewRetries(retryStore{db}, &db.retries, transport, 0)
	if err != nil {
		return nil, fmt.Errorf("waypg: retry queue: %w", err)
	}
	return q, nil
}

// retryStore implements sqlcore.RetryStore.
type retryStore struct{ db *DB }

// Ready implements sqlcore.ReceiverStore.
func (s retryStore) Ready(ctx context.Context) error {
	_, err := s.db.ensureSchema(ctx)
	return err
}

// Any implements sqlcore.ReceiverStore.
func (s retryStore) Any(ctx context.Context, queue string) (bool, error) {
	return s.db.anyRow(ctx, s.db.resolved().retryQueue, queue)
}

// Claim implements sqlcore.ReceiverStore.
func (s retryStore) Claim(ctx context.Context, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	return s.db.claimRows(ctx, s.db.resolved().retryQueue, to, fn)
}

// Settle implements sqlcore.ReceiverStore.
func (s retryStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	p := s.db.resolved()
	sql := p.retryQueue
	if c.Verb == "ack" {
		sql = p.retry
	}
	return s.db.settleRows(ctx, p.retryQueue, sql.Query(c.Verb), by, c, delivered)
}

// Contains implements sqlcore.RetryStore.
func (s retryStore) Contains(ctx context.Context, queue string, ids []waybill.MessageID, keys []string) ([]bool, error) {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	rows, err := s.db.pool.Query(ctx, s.db.resolved().retry.Query("contains"), queue, texts, keys)
	if err != nil {
		return nil, translate(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[bool])
	return found, translate(err)
}

// retryLocks is the transport whose dispatch locks are those of the retry queues.
const retryLocks = -1

// Add implements sqlcore.RetryStore. The locks of the keys make the order of ids that of
// the commits, and keep two transactions with the same messages from a deadlock.
func (s retryStore) Add(ctx context.Context, queue string, rows []sqlcore.RetryRow) error {
	p, batch, holder := s.db.resolved(), &pgx.Batch{}, uuid.Must(uuid.NewV4()).String()
	var locks []int32
	for _, r := range rows {
		of := cmp.Or(r.Record.Key, r.Record.ID.String())
		if lock := lockNumber(retryLocks, int16(outbox.Bucket(of, queueBuckets))); !slices.Contains(locks, lock) {
			locks = append(locks, lock)
		}
	}
	slices.Sort(locks)
	batch.Queue(p.outbox.Query("lock_many"), p.namespace, locks)
	var many retryColumns
	for _, r := range rows {
		if r.DeadLetters == "" {
			many.add(r)
			continue
		}
		many.queue(p, batch, queue, nil)
		many.add(r)
		many.queue(p, batch, queue, &holder)
		batch.Queue(p.retry.Query("bury"), queue, r.Record.ID.String(), holder, 0, r.DeadLetters)
	}
	many.queue(p, batch, queue, nil)
	return translate(s.db.pool.SendBatch(ctx, batch).Close())
}

// retryColumns are rows as arrays. A message is there once: the first row counts.
type retryColumns struct {
	known                                                  map[waybill.MessageID]bool
	ids, bodies                                            [][]byte
	names, keys, headers                                   []string
	created                                                []time.Time
	failures                                               []int
	delays                                                 []float64
	parked                                                 []bool
	at                                                     []*time.Time
	workers, handlers, types, errors, stacks, fingerprints []string
}

func (c *retryColumns) add(r sqlcore.RetryRow) {
	rec := r.Record
	if c.known[rec.ID] {
		return
	}
	if c.known == nil {
		c.known = map[waybill.MessageID]bool{}
	}
	c.known[rec.ID] = true
	c.ids, c.bodies = append(c.ids, rec.ID[:]), append(c.bodies, rec.Body)
	c.names, c.keys, c.headers = append(c.names, rec.Name), append(c.keys, rec.Key), append(c.headers, r.Headers)
	c.created, c.failures = append(c.created, rec.DispatchedAt), append(c.failures, r.Failures)
	c.delays, c.parked = append(c.delays, r.Delay.Seconds()), append(c.parked, r.Parked)
	var a worker.Attempt
	if r.Attempt != nil {
		a = *r.Attempt
	}
	c.at = append(c.at, nullIf(r.Attempt == nil, a.At))
	c.workers, c.handlers, c.types = append(c.workers, a.Worker), append(c.handlers, a.Handler), append(c.types, a.Type)
	c.errors, c.stacks, c.fingerprints = append(c.errors, a.Error), append(c.stacks, a.Stack), append(c.fingerprints, a.Fingerprint)
}

// queue adds the statement to batch and begins anew.
func (c *retryColumns) queue(p *catalog, batch *pgx.Batch, queue string, holder *string) {
	if len(c.ids) > 0 {
		batch.Queue(p.retry.Query("add"), queue, holder, c.ids, c.names, c.keys, c.headers, c.bodies, c.created, c.failures,
			c.delays, c.parked, c.at, c.workers, c.handlers, c.types, c.errors, c.stacks, c.fingerprints)
		*c = retryColumns{}
	}
}

// attemptArgs are the last parameters of the statements that record an attempt.
func attemptArgs(a *worker.Attempt) []any {
	if a == nil {
		return []any{nil, "", "", "", "", "", ""}
	}
	return []any{a.At, a.Worker, a.Handler, a.Type, a.Error, a.Stack, a.Fingerprint}
}

// Move implements sqlcore.RetryStore. It locks rows in ascending order. A dead letter makes
// the next message of its key claimable, as an acknowledgement does.
func (s retryStore) Move(ctx context.Context, by sqlcore.Consumer, rows []sqlcore.RetryRow) (map[sqlcore.DeliveredRow]bool, error) {
	p, batch, holder := s.db.resolved(), &pgx.Batch{}, by.Holder.String()
	moved, freed := map[sqlcore.DeliveredRow]bool{}, map[string]bool{}
	byID := func(a, b sqlcore.RetryRow) int { return cmp.Compare(a.Row.ID, b.Row.ID) }
	for _, r := range slices.SortedFunc(slices.Values(rows), byID) {
		dead := r.DeadLetters != ""
		args := []any{holder, r.Row.ID, r.Row.Lease, r.Headers, dead, r.Delay.Seconds(), r.Parked}
		batch.Queue(p.retry.Query("move"), append(args, attemptArgs(r.Attempt)...)...).Query(collectRows(moved))
		if dead {
			batch.Queue(p.retry.Query("bury"), by.Queue, r.Record.ID.String(), holder, r.Row.Lease, r.DeadLetters)
			freed[r.Row.Key] = r.Row.Key != ""
		}
	}
	if delete(freed, ""); len(freed) > 0 {
		batch.Queue(p.retryQueue.Query("next"), by.Queue, slices.Collect(maps.Keys(freed)))
	}
	return moved, s.db.sendTransaction(ctx, batch)
}

// Begin implements sqlcore.RetryStore.
func (s retryStore) Begin(ctx context.Context, by sqlcore.Consumer, row sqlcore.DeliveredRow) (crashes int, err error) {
	err = s.db.pool.QueryRow(ctx, s.db.resolved().retry.Query("begin"), by.Holder.String(), row.ID, row.Lease).Scan(&crashes)
	if errors.Is(err, pgx.ErrNoRows) {
		err = waybill.ErrLeaseLost
	}
	return crashes, translate(err)
}
