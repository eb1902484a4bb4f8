package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

var (
	_ outbox.Writer[*Tx] = (*DB)(nil)
	_ outbox.Store       = (*DB)(nil)
	_ inbox.Store[*Tx]   = (*DB)(nil)
	_ inbox.Log          = (*DB)(nil)
)

// A DB is a database without a disk. It is safe for concurrent use; one transaction
// is open at a time, further ones wait for it.
type DB struct {
	writing chan struct{} // holds a token while a transaction is open

	mu         sync.Mutex // guards the fields below; never held during a wait
	lastID     int64      // of rows and messages: ids are given in commit order
	transports map[string]*transport
	queues     map[string]*queue
	delayed    []delayed // by the time they are due
	inbox      map[inboxKey]bool
	unique     map[string]uniqueKey
	attempts   map[letterKey][]worker.Attempt
	letters    []*DeadLetter // of workers, by their first failure
}

// NewDB returns an empty database.
func NewDB() *DB {
	return &DB{writing: make(chan struct{}, 1), transports: map[string]*transport{}, queues: map[string]*queue{}, inbox: map[inboxKey]bool{}, unique: map[string]uniqueKey{}, attempts: map[letterKey][]worker.Attempt{}}
}

// A Tx is a transaction of a DB. It belongs to one goroutine.
type Tx struct {
	db     *DB
	unit   bool // of InTx, which ends it
	ended  bool // guarded by the mu of db
	writes writes
}

// writes are the uncommitted changes of a transaction, each kind in order.
type writes struct {
	rows    []outbox.Row
	entries []inboxKey
	effects []func()
}

var (
	errEnded         = errors.New("memory: the transaction has ended")
	errNoTransaction = errors.New("memory: the transaction is nil: pass the one of InTx, of an inbox handler, or of DB.Begin")
)

// Begin opens a transaction, after waiting for the one that is open. It must be
// ended by Commit or Rollback. Most code wants InTx.
func (db *DB) Begin(ctx context.Context) (*Tx, error) {
	if waybill.InUnit(ctx, db) {
		return nil, waybill.ErrNestedTransaction
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	select {
	case db.writing <- struct{}{}:
		return &Tx{db: db}, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("begin: %w", ctx.Err())
	}
}

// InTx implements outbox.Writer and inbox.Store.
func (db *DB) InTx(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if err := waybill.CheckUnit(ctx, db); err != nil {
		return err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	tx.unit = true
	defer tx.rollback() // after a commit this does nothing
	if err := fn(waybill.WithUnit(ctx, db), tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return tx.commit()
}

// OnCommit runs fn when tx commits, before the next transaction begins; fn must
// not use the database. It stands for a write to a table: a rollback, also to a
// savepoint, drops it, and after the end of tx OnCommit panics.
func (tx *Tx) OnCommit(fn func()) {
	if err := tx.db.check(tx); err != nil {
		panic(err)
	}
	tx.writes.effects = append(tx.writes.effects, fn)
}

// Commit commits a transaction of Begin; InTx commits its own.
func (tx *Tx) Commit() error {
	if tx.unit {
		return errors.New("memory: commit: InTx ends the transaction it began")
	}
	return tx.commit()
}

// Rollback rolls back a transaction of Begin. After Commit it does nothing.
func (tx *Tx) Rollback() error {
	if tx.unit {
		return errors.New("memory: rollback: InTx ends the transaction it began")
	}
	tx.rollback()
	return nil
}

func (tx *Tx) commit() error {
	if !tx.end() {
		return errEnded
	}
	defer func() { <-tx.db.writing }() // lets the next transaction begin
	for _, effect := range tx.writes.effects {
		effect()
	}
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	for _, key := range tx.writes.entries {
		tx.db.inbox[key] = true
	}
	for _, row := range tx.writes.rows {
		if u := row.Unique; u != nil {
			tx.db.unique[u.Key] = uniqueKey{row.Record.ID, time.Now().Add(u.For)}
		}
		tx.db.insert(row)
	}
	return nil
}

func (tx *Tx) rollback() {
	if tx.end() {
		<-tx.db.writing
	}
}

// end lets no further write join tx. It reports false if it has ended before.
func (tx *Tx) end() bool {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	ended := tx.ended
	tx.ended = true
	return !ended
}

// check refuses a transaction that has ended or is of another database.
func (db *DB) check(tx *Tx) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.checkLocked(tx)
}

// checkLocked is check for a caller that holds mu.
func (db *DB) checkLocked(tx *Tx) error {
	switch {
	case tx == nil:
		return errNoTransaction
	case tx.db != db:
		return errors.New("memory: the transaction is of another database")
	case tx.ended:
		return errEnded
	}
	return nil
}

// Write implements outbox.Writer.
func (db *DB) Write(_ context.Context, tx *Tx, rows ...outbox.Row) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.checkLocked(tx); err != nil {
		return err
	}
	for _, row := range rows {
		if row.Queue == "" && !db.transport(row.Transport).known {
			return fmt.Errorf("unknown transport %q", row.Transport)
		}
	}
	for _, row := range rows {
		row.Record = clone(row.Record)
		tx.writes.rows = append(tx.writes.rows, row)
	}
	return nil
}

// uniqueKey is a taken unique key.
type uniqueKey struct {
	holder waybill.MessageID
	until  time.Time
}

// LockUnique implements outbox.Writer. Expired keys are never deleted.
func (db *DB) LockUnique(_ context.Context, tx *Tx, key string) (waybill.MessageID, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.checkLocked(tx); err != nil {
		return waybill.MessageID{}, err
	}
	if taken, ok := db.unique[key]; ok && taken.until.After(time.Now()) {
		return taken.holder, nil
	}
	return outbox.UniqueHolder(tx.writes.rows, key), nil
}

// Savepoint implements outbox.Writer.
func (db *DB) Savepoint(ctx context.Context, tx *Tx, fn func(ctx context.Context) error) error {
	if err := db.check(tx); err != nil {
		return err
	}
	saved, done := tx.writes, false
	defer func() {
		if !done { // an error, or a panic of fn
			tx.writes = saved
		}
	}()
	if err := fn(ctx); err != nil {
		return err
	}
	done = true
	return nil
}

// delayed is a row that is not due yet.
type delayed struct {
	due time.Time
	row outbox.Row
}

// insert adds a committed row to its transport or queue, or to the delayed rows. The
// caller holds mu.
func (db *DB) insert(row outbox.Row) {
	if row.Record.Delay > 0 {
		due := row.Record.DispatchedAt.Add(row.Record.Delay)
		after, _ := slices.BinarySearchFunc(db.delayed, due, func(d delayed, due time.Time) int {
			if d.due.After(due) {
				return 1
			}
			return -1 // equal ones stay in the order of their dispatch
		})
		db.delayed = slices.Insert(db.delayed, after, delayed{due, row})
		if row.Queue != "" {
			db.queue(row.Queue).wake() // it has a new time to wait for
		}
		return
	}
	db.lastID++
	if row.Queue != "" {
		db.queue(row.Queue).add(db.lastID, row.Record)
	} else {
		db.transport(row.Transport).add(db.lastID, row.Record)
	}
}

// moveDue moves due delayed rows to their transports and queues; their order begins
// then. The caller holds mu.
func (db *DB) moveDue(now time.Time) {
	for len(db.delayed) > 0 && !db.delayed[0].due.After(now) {
		row := db.delayed[0].row
		db.delayed = slices.Delete(db.delayed, 0, 1)
		// Its order and its age begin when it is due.
		row.Record.Delay, row.Record.DispatchedAt = 0, row.Record.DispatchedAt.Add(row.Record.Delay)
		db.insert(row)
	}
}

// clone copies a record, so that callers do not share the stored one.
func clone(rec *waybill.Record) *waybill.Record {
	c := *rec
	c.Body = slices.Clone(rec.Body)
	c.Headers = maps.Clone(rec.Headers)
	c.ContentType = cmp.Or(rec.ContentType, "application/json")
	return &c
}
