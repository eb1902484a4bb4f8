package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

// Remember implements inbox.Store. A transaction that handles the same message
// at this moment is waited for. An entry that a statement of its handler has
// committed is an unrecoverable error: nobody knows how much of the effect has
// happened.
func (db *DB) Remember(ctx context.Context, tx *sql.Tx, e inbox.Entry) (bool, error) {
	u, err := db.unitOf(tx)
	if err != nil {
		return false, err
	}
	if err := fits(e); err != nil {
		return false, err
	}
	_, err = tx.ExecContext(ctx, db.inbox.Query("claim"), e.Handler, e.DedupKey, e.MessageID[:], u != nil)
	switch {
	case is(err, errDuplicate):
		return false, db.sure(ctx, tx, e)
	case err != nil:
		return false, translate(err)
	case u != nil:
		u.mu.Lock()
		u.entries = append(u.entries, e)
		u.mu.Unlock()
	}
	return true, nil
}

// fits refuses what the columns are too short for. A server whose sql_mode is not
// strict would cut it, and take two entries for one.
func fits(e inbox.Entry) error {
	if len(e.Handler) > 190 || len(e.DedupKey) > 512 {
		return waybill.Unrecoverable(fmt.Errorf("inbox: the handler's name has %d bytes, the dedup key %d: allowed are 190 and 512", len(e.Handler), len(e.DedupKey)))
	}
	return nil
}

// sure refuses an entry that is in doubt.
func (db *DB) sure(ctx context.Context, tx *sql.Tx, e inbox.Entry) error {
	var inDoubt bool
	err := tx.QueryRowContext(ctx, db.inbox.Query("in_doubt"), e.Handler, e.DedupKey).Scan(&inDoubt)
	switch {
	case err != nil && !errors.Is(err, sql.ErrNoRows): // pruned in this moment: it was certain
		return translate(err)
	case inDoubt:
		return waybill.Unrecoverable(fmt.Errorf("handler %q ran a statement that commits, such as DDL, for message %s: part of its effect may have happened; see to it, then delete its row from %sinbox to have it handled again, or set processed_at to leave it",
			e.Handler, e.MessageID, qualified(db.schema, db.prefix)))
	}
	return nil
}

// Seen implements inbox.Log.
func (db *DB) Seen(ctx context.Context, e inbox.Entry) (seen bool, err error) {
	if err := db.ready(ctx); err != nil {
		return false, err
	}
	err = db.pool.QueryRowContext(ctx, db.inbox.Query("seen"), e.Handler, e.DedupKey).Scan(&seen)
	return seen, translate(err)
}

// Mark implements inbox.Log.
func (db *DB) Mark(ctx context.Context, e inbox.Entry) error {
	if err := db.writer(ctx); err != nil {
		return err
	}
	if err := fits(e); err != nil {
		return err
	}
	_, err := db.pool.ExecContext(ctx, db.inbox.Query("mark"), e.Handler, e.DedupKey, e.MessageID[:])
	return translate(err)
}
