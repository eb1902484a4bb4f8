package waypg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A sharedConn is the connection of a unit of work, between its statements and the keep-alive
// of its transaction. Statements hold mu for reading: a function that runs two at once gets
// the client's own error. A ping only tries the lock, so that it never blocks one.
type sharedConn struct {
	mu   sync.RWMutex
	conn *pgx.Conn

	timed   atomic.Bool // the transaction has the idle timeout
	escaped atomic.Bool // the application has the connection itself

	failure atomic.Pointer[statementError] // the last, unless it was due to an aborted transaction
}

// A statementError is the error of a statement.
type statementError struct {
	query string
	err   error
}

// noteFailure keeps an error of the server that aborts the transaction.
func (s *sharedConn) noteFailure(query string, err error) {
	const aborted = "25P02"
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && server.Code != aborted {
		s.failure.Store(&statementError{query, err})
	}
}

// abortedBy is errAborted with the statement that failed.
func (s *sharedConn) abortedBy() error {
	f := s.failure.Load()
	if f == nil {
		return errAborted
	}
	const longest = 100
	query := strings.Join(strings.Fields(f.query), " ")
	if len(query) > longest {
		query = strings.ToValidUTF8(query[:longest], "") + "..."
	}
	return fmt.Errorf("%w: %s: %w", errAborted, query, f.err)
}

// use runs fn with the connection.
func (s *sharedConn) use(fn func(conn *pgx.Conn) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fn(s.conn)
}

// escape ends the keep-alive, after a running ping: the uses of the connection cannot be seen
// any more.
func (s *sharedConn) escape() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.escaped.Store(true)
}

// ping shows the server that the process lives. The connection refuses it while a result is
// open.
func (s *sharedConn) ping(ctx context.Context) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if s.timed.Load() && !s.escaped.Load() && !s.conn.IsClosed() {
		_ = s.conn.Ping(ctx) // the next statement fails as well
	}
}

// sharedTx is a transaction on a sharedConn.
type sharedTx struct {
	pgx.Tx
	shared *sharedConn
}

func (t *sharedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	t.shared.mu.RLock()
	defer t.shared.mu.RUnlock()
	tx, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &sharedTx{tx, t.shared}, nil
}

func (t *sharedTx) Commit(ctx context.Context) error {
	t.shared.mu.RLock()
	defer t.shared.mu.RUnlock()
	return t.Tx.Commit(ctx)
}

func (t *sharedTx) Rollback(ctx context.Context) error {
	t.shared.mu.RLock()
	defer t.shared.mu.RUnlock()
	return t.Tx.Rollback(ctx)
}

func (t *sharedTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	t.shared.mu.RLock()
	defer t.shared.mu.RUnlock()
	tag, err := t.Tx.Exec(ctx, query, args...)
	t.shared.noteFailure(query, err)
	return tag, err
}

func (t *sharedTx) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	t.shared.mu.RLock()
	defer t.shared.mu.RUnlock()
	return t.Tx.Prepare(ctx, name, query)
}

func (t *sharedTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	t.shared.mu.RLock()
	defer t.shared.mu.RUnlock()
	n, err := t.Tx.CopyFrom(ctx, table, columns, from)
	t.shared.noteFailure("COPY "+table.Sanitize(), err)
	return n, err
}

func (t *sharedTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	t.shared.mu.RLock()
	defer t.shared.mu.RUnlock()
	rows, err := t.Tx.Query(ctx, query, args...)
	t.shared.noteFailure(query, err)
	return sharedRows{rows, t.shared, query}, err
}

func (t *sharedTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	t.shared.mu.RLock()
	defer t.shared.mu.RUnlock()
	return sharedRow{t.Tx.QueryRow(ctx, query, args...), t.shared, query}
}

func (t *sharedTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	t.shared.mu.RLock()
	defer t.shared.mu.RUnlock()
	return sharedBatch{t.Tx.SendBatch(ctx, batch), t.shared}
}

func (t *sharedTx) LargeObjects() pgx.LargeObjects {
	t.shared.escape()
	return t.Tx.LargeObjects()
}

func (t *sharedTx) Conn() *pgx.Conn {
	t.shared.escape()
	return t.Tx.Conn()
}

// sharedRows are the rows of a sharedTx. The methods that may read or close lock.
type sharedRows struct {
	pgx.Rows
	shared *sharedConn
	query  string
}

func (r sharedRows) Next() bool {
	r.shared.mu.RLock()
	defer r.shared.mu.RUnlock()
	more := r.Rows.Next()
	if !more {
		r.shared.noteFailure(r.query, r.Rows.Err())
	}
	return more
}

func (r sharedRows) Scan(to ...any) error {
	r.shared.mu.RLock()
	defer r.shared.mu.RUnlock()
	return r.Rows.Scan(to...)
}

func (r sharedRows) Values() ([]any, error) {
	r.shared.mu.RLock()
	defer r.shared.mu.RUnlock()
	return r.Rows.Values()
}

func (r sharedRows) Close() {
	r.shared.mu.RLock()
	defer r.shared.mu.RUnlock()
	r.Rows.Close()
	r.shared.noteFailure(r.query, r.Rows.Err())
}

// sharedRow is a row of a sharedTx.
type sharedRow struct {
	pgx.Row
	shared *sharedConn
	query  string
}

func (r sharedRow) Scan(to ...any) error {
	r.shared.mu.RLock()
	defer r.shared.mu.RUnlock()
	err := r.Row.Scan(to...)
	r.shared.noteFailure(r.query, err)
	return err
}

// inBatch stands for the statements of a batch.
const inBatch = "a batch"

// sharedBatch is the results of a batch of a sharedTx.
type sharedBatch struct {
	pgx.BatchResults
	shared *sharedConn
}

func (b sharedBatch) Exec() (pgconn.CommandTag, error) {
	b.shared.mu.RLock()
	defer b.shared.mu.RUnlock()
	tag, err := b.BatchResults.Exec()
	b.shared.noteFailure(inBatch, err)
	return tag, err
}

func (b sharedBatch) Query() (pgx.Rows, error) {
	b.shared.mu.RLock()
	defer b.shared.mu.RUnlock()
	rows, err := b.BatchResults.Query()
	b.shared.noteFailure(inBatch, err)
	return sharedRows{rows, b.shared, inBatch}, err
}

func (b sharedBatch) QueryRow() pgx.Row {
	b.shared.mu.RLock()
	defer b.shared.mu.RUnlock()
	return sharedRow{b.BatchResults.QueryRow(), b.shared, inBatch}
}

func (b sharedBatch) Close() error {
	b.shared.mu.RLock()
	defer b.shared.mu.RUnlock()
	err := b.BatchResults.Close()
	b.shared.noteFailure(inBatch, err)
	return err
}
