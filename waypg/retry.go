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
	return db.retryQueue(transport, 0)
}

func (db *DB) retryQueue(transport string, lease time.Duration) (worker.RetryQueue, error) {
	q, err := sqlcore.NewRetries(retryStore{db}, &db.retries, transport, lease)
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
	p, batch, holder := s.db.resolved(), &pgx.Batch{}, uuid.Must(uuid.NewV4())
	var locks []int32
	for _, r := range rows {
		of := r.Record.Key
		if of == "" {
			of = r.Record.ID.String()
		}
		if lock := lockNumber(retryLocks, int16(outbox.Bucket(of, queueBuckets))); !slices.Contains(locks, lock) {
			locks = append(locks, lock)
		}
	}
	slices.Sort(locks)
	batch.Queue(p.outbox.Query("lock_many"), p.namespace, locks)
	for _, r := range rows {
		rec, dead := r.Record, r.DeadLetters != ""
		args := []any{
			queue, rec.ID.String(), rec.Name, rec.Key, r.Headers, rec.Body, rec.DispatchedAt, r.Failures,
			r.Delay.Seconds(), r.Parked, nullIf(!dead, holder.String()),
		}
		batch.Queue(p.retry.Query("add"), append(args, attemptArgs(r.Attempt)...)...)
		if dead {
			batch.Queue(p.retry.Query("bury"), queue, rec.ID.String(), holder.String(), 0, r.DeadLetters)
		}
	}
	return translate(s.db.pool.SendBatch(ctx, batch).Close())
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
