package memory

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

// inboxKey is the unique key of an entry.
type inboxKey struct{ handler, dedup string }

func inboxKeyOf(e inbox.Entry) inboxKey { return inboxKey{e.Handler, e.DedupKey} }

// Retention returns 30 days, the age limit of messages. Entries are never deleted.
func (db *DB) Retention() time.Duration { return 30 * 24 * time.Hour }

// InsertTx implements inbox.Store.
func (db *DB) InsertTx(_ context.Context, tx *Tx, e inbox.Entry) (bool, error) {
	if err := e.Check(); err != nil {
		return false, err
	}
	if err := db.check(tx); err != nil {
		return false, err
	}
	key := inboxKeyOf(e)
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.inbox[key] || slices.Contains(tx.writes.entries, key) {
		return false, nil
	}
	tx.writes.entries = append(tx.writes.entries, key)
	return true, nil
}

// InTransaction implements inbox.Store.
func (db *DB) InTransaction(ctx context.Context) bool { return waybill.InUnit(ctx, db) }

// RunInSavepoint implements inbox.Store.
func (db *DB) RunInSavepoint(ctx context.Context, tx *Tx, e inbox.Entry, fn func(ctx context.Context) error) (fresh bool, failed, lost error) {
	if err := e.Check(); err != nil {
		return false, err, nil
	}
	if err := db.check(tx); err != nil {
		return false, nil, err
	}
	saved := tx.writes
	fresh, lost = db.InsertTx(ctx, tx, e)
	if !fresh || lost != nil {
		return false, nil, lost
	}
	if failed = fn(waybill.WithUnit(ctx, db)); failed != nil {
		tx.writes = saved
	}
	return true, failed, nil
}

// Contains implements inbox.Log.
func (db *DB) Contains(_ context.Context, e inbox.Entry) (bool, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.inbox[inboxKeyOf(e)], nil
}

// Insert implements inbox.Log.
func (db *DB) Insert(ctx context.Context, e inbox.Entry) error {
	return db.InTx(ctx, func(ctx context.Context, tx *Tx) error {
		_, err := db.InsertTx(ctx, tx, e)
		return err
	})
}
