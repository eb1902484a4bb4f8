package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// InsertTx implements inbox.Store. A transaction that handles the same message
// at this moment is waited for. An entry that a statement of its handler has
// committed is an unrecoverable error: part of the effect may be missing.
func (db *DB) InsertTx(ctx context.Context, tx *sql.Tx, e inbox.Entry) (bool, error) {
	u, err := db.unitOf(tx)
	if err != nil {
		return false, err
	}
	if err := e.Check(); err != nil {
		return false, err
	}
	_, err = tx.ExecContext(ctx, db.inbox.Query("claim"), e.Handler, e.DedupKey, hexID(e.MessageID), u != nil)
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

// InTransaction implements inbox.Store.
func (db *DB) InTransaction(ctx context.Context) bool { return waybill.InUnit(ctx, db) }

// memberSavepoint is the savepoint of a message of a group.
const memberSavepoint = sentinel + "_part"

// RunInSavepoint implements inbox.Store. The statements ahead of fn are one round trip on MariaDB.
// The release of the part before says whether the transaction is still the
// unit's. An entry whose part has dispatched nothing is certain from then on: a
// statement of a later part that commits leaves it no doubt.
func (db *DB) RunInSavepoint(ctx context.Context, tx *sql.Tx, e inbox.Entry, fn func(ctx context.Context) error) (fresh bool, failed, lost error) {
	u, err := db.unitOf(tx)
	switch {
	case err != nil:
		return false, nil, err
	case u == nil:
		return false, nil, errNoUnit
	}
	if err := e.Check(); err != nil {
		return false, err, nil
	}
	all := db.processed(u.done)
	if u.parts++; u.parts > 1 {
		all = append(all, statement{text: "RELEASE SAVEPOINT " + memberSavepoint})
	}
	all = append(all, statement{text: "SAVEPOINT " + memberSavepoint},
		statement{text: db.inbox.Query("claim"), args: []any{e.Handler, e.DedupKey, hexID(e.MessageID), true}})
	err = db.run(ctx, tx, script{statements: all})
	u.done = nil
	switch {
	case is(err, errDuplicate):
		return false, db.sure(ctx, tx, e), nil
	case is(err, errNoSavepoint):
		return false, nil, errLost
	case err != nil:
		return false, nil, fmt.Errorf("inbox: %w", translate(err))
	}
	mark := u.Mark()
	if failed = fn(waybill.WithUnit(ctx, db)); failed == nil {
		if u.Mark() == mark {
			u.done = append(u.done, e)
		} else {
			u.entries = append(u.entries, e)
		}
		return true, nil, nil
	}
	u.Undo(mark)
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlcore.RollbackTimeout)
	defer cancel()
	switch _, err := tx.ExecContext(undoing, "ROLLBACK TO SAVEPOINT "+memberSavepoint); {
	case is(err, errNoSavepoint):
		return true, nil, errLost
	case err != nil:
		return true, nil, fmt.Errorf("rollback to savepoint: %w", translate(err))
	}
	return true, failed, nil
}

// errNoUnit says that a part needs InTx.
var errNoUnit = errors.New("waymysql: the transaction is not one of InTx")

// processed notes that entries are certain.
func (db *DB) processed(entries []inbox.Entry) (all []statement) {
	for _, e := range entries {
		all = append(all, statement{text: db.inbox.Query("processed"), args: []any{e.Handler, e.DedupKey}})
	}
	return all
}

// sure refuses an entry that is in doubt.
func (db *DB) sure(ctx context.Context, tx *sql.Tx, e inbox.Entry) error {
	var inDoubt bool
	err := tx.QueryRowContext(ctx, db.inbox.Query("in_doubt"), e.Handler, e.DedupKey).Scan(&inDoubt)
	switch {
	case err != nil && !errors.Is(err, sql.ErrNoRows): // pruned in this moment: it was certain
		return translate(err)
	case inDoubt:
		return waybill.Unrecoverable(fmt.Errorf("handler %q ran a statement that commits, such as DDL, for message %s: part of its effect may have happened; see to it, then delete its row from %sinbox to have it handled again, or set its in_doubt to 0 to leave it",
			e.Handler, e.MessageID, qualified(db.schema, db.prefix)))
	}
	return nil
}

// Contains implements inbox.Log.
func (db *DB) Contains(ctx context.Context, e inbox.Entry) (seen bool, err error) {
	if err := e.Check(); err != nil {
		return false, err
	}
	err = db.readRow(ctx, db.inbox.Query("seen"), []any{e.Handler, e.DedupKey}, &seen)
	return seen, err
}

// Insert implements inbox.Log.
func (db *DB) Insert(ctx context.Context, e inbox.Entry) error {
	if err := db.writer(ctx); err != nil {
		return err
	}
	if err := e.Check(); err != nil {
		return err
	}
	_, err := db.pool.ExecContext(ctx, db.inbox.Query("mark"), e.Handler, e.DedupKey, hexID(e.MessageID))
	return translate(err)
}
