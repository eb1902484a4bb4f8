package waysqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// RetryQueue implements worker.Store.
func (db *DB) RetryQueue(transport string) (worker.RetryQueue, error) {
	q, err := sqlcore.NewRetries(retryStore{db}, &db.retries, transport, 0)
	if err != nil {
		return nil, fmt.Errorf("waysqlite: retry queue: %w", err)
	}
	return q, nil
}

// retryStore implements sqlcore.RetryStore.
type retryStore struct{ db *DB }

// Ready implements sqlcore.ReceiverStore.
func (s retryStore) Ready(ctx context.Context) error { return s.db.checkSchema(ctx) }

// Any implements sqlcore.ReceiverStore.
func (s retryStore) Any(ctx context.Context, queue string) (bool, error) {
	return s.db.anyRows(ctx, s.db.retryQueueSQL, queue)
}

// Claim implements sqlcore.ReceiverStore.
func (s retryStore) Claim(ctx context.Context, to sqlcore.Consumer, fn func(context.Context, sqlcore.QueueClaim) error) error {
	return s.db.claimRows(ctx, s.db.retryQueueSQL, to, fn)
}

// Settle implements sqlcore.ReceiverStore.
func (s retryStore) Settle(ctx context.Context, by sqlcore.Consumer, c sqlcore.QueueChange, delivered []sqlcore.DeliveredRow) (map[sqlcore.DeliveredRow]bool, error) {
	var statements []string
	if c.Verb == "ack" {
		statements = []string{s.db.retrySQL.Query("forget_attempts"), s.db.retrySQL.Query("forget_entry")}
	}
	statements = append(statements, s.db.retryQueueSQL.Query(c.Verb))
	return s.db.settleRows(ctx, s.db.retryQueueSQL, statements, by, c, delivered)
}

// Contains implements sqlcore.RetryStore.
func (s retryStore) Contains(ctx context.Context, queue string, ids []waybill.MessageID, keys []string) ([]bool, error) {
	pairs := make([][2]string, len(ids))
	for i, id := range ids {
		pairs[i] = [2]string{hex.EncodeToString(id[:]), keys[i]}
	}
	asJSON, err := json.Marshal(pairs)
	if err != nil {
		return nil, err
	}
	return query(ctx, s.db, s.db.retrySQL.Query("contains"), func(rows *sql.Rows, found *bool) error {
		return rows.Scan(found)
	}, queue, string(asJSON))
}

// Add implements sqlcore.RetryStore.
func (s retryStore) Add(ctx context.Context, queue string, rows []sqlcore.RetryRow) error {
	return s.db.write(ctx, func(tx *txn) error {
		for _, r := range rows {
			rec, failures := r.Record, r.Failures
			if r.Attempt != nil {
				failures++
			}
			added, err := ids(tx.query(ctx, s.db.retrySQL.Query("add"), queue, rec.ID[:], rec.Name, rec.Key, r.Headers, rec.Body, rec.DispatchedAt.UnixMicro(), failures, r.Parked, r.Delay.Microseconds()))
			if err != nil {
				return err
			}
			for _, id := range added {
				if err := s.place(ctx, tx, id, r); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Move implements sqlcore.RetryStore.
func (s retryStore) Move(ctx context.Context, by sqlcore.Consumer, rows []sqlcore.RetryRow) (map[sqlcore.DeliveredRow]bool, error) {
	moved, keys := map[sqlcore.DeliveredRow]bool{}, map[string]bool{}
	err := s.db.write(ctx, func(tx *txn) error {
		for _, r := range rows {
			found, err := ids(tx.query(ctx, s.db.retrySQL.Query("move"), r.Row.ID, by.Holder[:], r.Row.Lease, r.Attempt != nil, r.Headers, r.Parked, r.Delay.Microseconds()))
			if err != nil {
				return err
			}
			for _, id := range found {
				moved[r.Row] = true
				keys[r.Row.Key] = keys[r.Row.Key] || r.DeadLetters != ""
				if err := s.place(ctx, tx, id, r); err != nil {
					return err
				}
			}
		}
		return next(ctx, tx, s.db.retryQueueSQL, by.Queue, keys)
	})
	return moved, err
}

// place records the attempt at a row that was added or moved, and takes the row to the
// dead letters if that is its place.
func (s retryStore) place(ctx context.Context, tx *txn, id int64, r sqlcore.RetryRow) error {
	if a := r.Attempt; a != nil {
		if _, err := tx.exec(ctx, s.db.retrySQL.Query("record_attempt"), id, a.At.UnixMicro(), a.Worker, a.Handler, a.Type, a.Error, a.Stack, a.Fingerprint); err != nil {
			return err
		}
	}
	if r.DeadLetters == "" {
		return nil
	}
	if _, err := tx.exec(ctx, s.db.retrySQL.Query("bury"), id, r.DeadLetters); err != nil {
		return err
	}
	_, err := tx.exec(ctx, s.db.retrySQL.Query("delete_buried"), id)
	return err
}

// Begin implements sqlcore.RetryStore.
func (s retryStore) Begin(ctx context.Context, by sqlcore.Consumer, row sqlcore.DeliveredRow) (crashes int, err error) {
	err = s.db.write(ctx, func(tx *txn) error {
		err := tx.QueryRowContext(ctx, s.db.retrySQL.Query("begin"), row.ID, by.Holder[:], row.Lease).Scan(&crashes)
		if errors.Is(err, sql.ErrNoRows) {
			return waybill.ErrLeaseLost
		}
		return err
	})
	return crashes, err
}
