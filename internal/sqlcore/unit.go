// Package sqlcore is the common part of the packages waypg, waymysql and waysqlite:
// migrations, the buffer of a unit of work and its savepoints, the receiver of a queue
// in a table, repairs by an operator, and wake-ups. It has no statement on a table.
package sqlcore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// A Unit buffers the rows that a unit of work dispatches until it commits. The zero
// value is ready for use. It is safe for concurrent use, because goroutines may share a
// transaction.
type Unit struct {
	mu   sync.Mutex
	rows []outbox.Row
	over bool
}

// ErrOver is the error of a dispatch after the rows of its unit were written.
var ErrOver = errors.New("the unit of work, or the savepoint, is over")

// ErrNoTransaction is the error of a call with a nil transaction.
var ErrNoTransaction = errors.New("the transaction is nil: pass the one of InTx, of an inbox handler, or one that you began")

// Add appends rows, until End.
func (u *Unit) Add(rows []outbox.Row) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return ErrOver
	}
	u.rows = append(u.rows, rows...)
	return nil
}

// End closes the buffer and returns its rows.
func (u *Unit) End() []outbox.Row {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	return u.rows
}

// UniqueHolder returns the message that takes a unique key, or the zero id.
func (u *Unit) UniqueHolder(key string) waybill.MessageID {
	u.mu.Lock()
	defer u.mu.Unlock()
	return outbox.UniqueHolder(u.rows, key)
}

// Mark returns the number of rows, for Undo.
func (u *Unit) Mark() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.rows)
}

// Undo removes the rows added since Mark.
func (u *Unit) Undo(mark int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rows = u.rows[:min(mark, len(u.rows))]
}

// RollbackTimeout limits the rollback of a failed transaction, which outlives its context.
const RollbackTimeout = 5 * time.Second

// Savepoint runs fn between a savepoint of that name and its release. An error or a panic
// of fn rolls back its statements, and removes the rows that it added to u.
func Savepoint(ctx context.Context, u *Unit, name string, exec func(ctx context.Context, statement string) error, fn func(ctx context.Context) error) (err error) {
	mark, done := u.Mark(), false
	defer func() {
		if done {
			return
		}
		u.Undo(mark)
		undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), RollbackTimeout)
		defer cancel()
		if failed := exec(undoing, "ROLLBACK TO SAVEPOINT "+name); failed != nil {
			err = errors.Join(err, fmt.Errorf("rollback to savepoint: %w", failed))
		} else {
			_ = exec(undoing, "RELEASE SAVEPOINT "+name)
		}
	}()
	if err := exec(ctx, "SAVEPOINT "+name); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	if err := fn(ctx); err != nil {
		return err
	}
	if err := exec(ctx, "RELEASE SAVEPOINT "+name); err != nil {
		return fmt.Errorf("release savepoint: %w", err)
	}
	done = true
	return nil
}

// CommitUnknown is the error of a COMMIT that may or may not have happened.
func CommitUnknown(err error, rows []outbox.Row) error {
	var ids []waybill.MessageID
	for _, row := range rows {
		ids = append(ids, row.Record.ID)
	}
	return &waybill.CommitUnknownError{IDs: slices.Compact(ids), Err: err} // rows of a message are neighbours
}
