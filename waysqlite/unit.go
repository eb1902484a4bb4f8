package waysqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// unit is the buffer of one unit of work. Only the goroutine that has the
// transaction touches it.
type unit struct {
	rows  []outbox.Row
	depth int // of savepoints
}

// insideKey marks contexts of functions given to InTx.
type insideKey struct{ db *DB }

// InTx implements outbox.Writer and inbox.Store.
func (db *DB) InTx(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	if ctx.Value(insideKey{db}) != nil {
		return waybill.ErrNestedTransaction
	}
	if err := db.checkSchema(ctx); err != nil {
		return err
	}
	insert, err := db.stmt(ctx, db.outboxSQL.Query("insert_outbox"))
	if err != nil {
		return err
	}
	// The transaction begins and ends by our word alone: a context that ends
	// between COMMIT and its answer must not decide what we report.
	conn, err := db.writer.Conn(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", translate(err))
	}
	defer func() { _ = conn.Close() }() // gives it back to the pool
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("begin: %w", translate(err))
	}
	u := &unit{}
	db.units.Store(tx, u)
	defer func() {
		db.units.Delete(tx)
		_ = tx.Rollback() // after a commit this does nothing
	}()
	if err := fn(context.WithValue(ctx, insideKey{db}, true), tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := db.insert(ctx, tx, tx.StmtContext(ctx, insert), u.rows); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return commitError(err, u.rows)
	}
	db.hintRows(u.rows)
	return nil
}

// commitError says whether a failed commit is known to have failed.
func commitError(err error, rows []outbox.Row) error {
	if notCommitted(err) || errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("commit: %w", translate(err))
	}
	unknown := &waybill.CommitUnknownError{Err: err}
	for _, row := range rows {
		if !slices.Contains(unknown.IDs, row.Record.ID) {
			unknown.IDs = append(unknown.IDs, row.Record.ID)
		}
	}
	return unknown
}

// Savepoint implements outbox.Writer. In a transaction of the caller's own it
// undoes statements; what was dispatched there is one of them.
func (db *DB) Savepoint(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context) error) error {
	u := db.unitOf(tx)
	if u == nil {
		u = &unit{}
	}
	mark := len(u.rows)
	u.depth++
	name := fmt.Sprintf("waybill_%d", u.depth)
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+name); err != nil {
		u.depth--
		return fmt.Errorf("savepoint: %w", translate(err))
	}
	done := false
	defer func() {
		u.depth--
		if !done { // an error, or a panic of fn
			u.rows = u.rows[:mark]
			_, _ = tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK TO "+name+"; RELEASE "+name)
		}
	}()
	if err := fn(ctx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "RELEASE "+name); err != nil {
		return fmt.Errorf("release savepoint: %w", translate(err))
	}
	done = true
	return nil
}

func (db *DB) unitOf(tx *sql.Tx) *unit {
	if u, ok := db.units.Load(tx); ok {
		return u.(*unit)
	}
	return nil
}

// Write implements outbox.Writer.
func (db *DB) Write(ctx context.Context, tx *sql.Tx, rows ...outbox.Row) error {
	if u := db.unitOf(tx); u != nil {
		u.rows = append(u.rows, rows...)
		return nil
	}
	return db.insert(ctx, tx, nil, rows)
}

// insert writes rows as part of tx; insertOutbox may be nil.
func (db *DB) insert(ctx context.Context, tx *sql.Tx, insertOutbox *sql.Stmt, rows []outbox.Row) error {
	for _, row := range rows {
		rec := row.Record
		headers, err := encodeHeaders(rec)
		if err != nil {
			return err
		}
		lane, err := db.laneOf(row)
		if err != nil {
			return err
		}
		body, created := bodyOf(rec), rec.DispatchedAt.UnixMicro()
		switch {
		case rec.Delay > 0:
			_, err = tx.ExecContext(ctx, db.outboxSQL.Query("insert_delayed"), created+rec.Delay.Microseconds(), nullIf(lane == 0, lane), nullIf(row.Queue == "", row.Queue), rec.ID[:], rec.Name, rec.Key, headers, body, created)
		case row.Queue != "":
			_, err = tx.ExecContext(ctx, db.queueSQL.Query("insert"), row.Queue, rec.ID[:], rec.Name, rec.Key, headers, body, created)
		case insertOutbox != nil:
			_, err = insertOutbox.ExecContext(ctx, lane, rec.ID[:], rec.Name, rec.Key, headers, body, created)
		default:
			_, err = tx.ExecContext(ctx, db.outboxSQL.Query("insert_outbox"), lane, rec.ID[:], rec.Name, rec.Key, headers, body, created)
		}
		if err != nil {
			return fmt.Errorf("insert %s: %w", rec.Name, translate(err))
		}
	}
	return nil
}

// bodyOf returns a body that is not NULL in the database.
func bodyOf(rec *waybill.Record) []byte {
	if rec.Body == nil {
		return []byte{}
	}
	return rec.Body
}

func nullIf(null bool, v any) any {
	if null {
		return nil
	}
	return v
}

func (db *DB) hintRows(rows []outbox.Row) {
	for _, row := range rows {
		if row.Queue != "" {
			db.hint("queue " + row.Queue)
		} else {
			db.hint(row.Transport)
		}
	}
}

// contentType is the key under which a content type other than JSON is stored
// among the headers.
const contentType = "content-type"

func encodeHeaders(rec *waybill.Record) (string, error) {
	plain := rec.ContentType == "" || rec.ContentType == "application/json"
	if len(rec.Headers) == 0 && plain {
		return "{}", nil
	}
	all := rec.Headers
	if !plain {
		all = make(map[string]string, len(rec.Headers)+1)
		for name, value := range rec.Headers {
			all[name] = value
		}
		all[contentType] = rec.ContentType
	}
	text, err := json.Marshal(all)
	return string(text), err
}

func decodeHeaders(rec *waybill.Record, text string) error {
	rec.ContentType = "application/json"
	if text == "{}" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &rec.Headers); err != nil {
		return fmt.Errorf("headers of message %s: %w", rec.ID, err)
	}
	if other, ok := rec.Headers[contentType]; ok {
		rec.ContentType = other
		delete(rec.Headers, contentType)
	}
	return nil
}
