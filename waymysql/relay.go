package waymysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// Traits implements outbox.Store.
func (db *DB) Traits() outbox.StoreTraits {
	return outbox.StoreTraits{IdleTimeout: db.idle, BlocksRoutes: true, KeepsReports: true}
}

// ListenError implements outbox.Store: there are no notifications.
func (db *DB) ListenError() string { return "" }

// StartRelay implements outbox.Store. Any number of processes may relay.
func (db *DB) StartRelay(ctx context.Context) (func(), error) {
	if err := errors.Join(db.checkRelayConns(), db.writer(ctx)); err != nil {
		return nil, err
	}
	return func() {}, nil
}

// Wake implements outbox.Store.
func (db *DB) Wake(transport string, part outbox.Part) <-chan struct{} {
	return db.wakes.Of(transport, part)
}

// Backlog implements outbox.Store.
func (db *DB) Backlog(ctx context.Context, transport string) (backlog outbox.Backlog, err error) {
	if err := db.ensureSchema(ctx); err != nil {
		return backlog, err
	}
	id, err := db.transport(ctx, transport)
	if err != nil || id == 0 {
		return backlog, err
	}
	err = db.pool.QueryRowContext(ctx, db.outbox.Query("backlog"), id, id, id, id, id).Scan(&backlog.Pending, &backlog.Blocked, &backlog.Delayed)
	return backlog, translate(err)
}

// Transports implements outbox.Store.
func (db *DB) Transports(ctx context.Context) ([]string, error) {
	if err := db.ensureSchema(ctx); err != nil {
		return nil, err
	}
	known, err := db.readTransports(ctx, db.pool)
	return slices.Sorted(maps.Keys(known)), err
}

// Report implements outbox.Store.
func (db *DB) Report(ctx context.Context, r outbox.Report) error {
	if err := db.ensureSchema(ctx); err != nil {
		return err
	}
	if r.Ended {
		_, err := db.pool.ExecContext(ctx, db.outbox.Query("forget_report"), hexID(r.Relay))
		return translate(err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	problem := sqlcore.Clip(r.Problem)
	_, err = db.pool.ExecContext(ctx, db.outbox.Query("report"), hexID(r.Relay), []byte(r.Transport), host, os.Getpid(), problem, problem)
	return translate(err)
}

// jsonIDs is an array of ids in ascending order, for JSON_TABLE: joined rows are looked
// up, and locked, one by one.
func jsonIDs(ids []int64) string { return "[" + join(slices.Sorted(slices.Values(ids))) + "]" }

// jsonOf is a list of numbers, or of texts in hexadecimal, for JSON_TABLE.
func jsonOf(list any) string {
	text, _ := json.Marshal(list) // no such list fails
	return string(text)
}

// join writes numbers for an IN list.
func join[N int16 | int64](numbers []N) string {
	var b strings.Builder
	for i, n := range numbers {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}

// hexID is an id for UNHEX: raw bytes in a statement's text break the server's views of
// running statements.
func hexID(id [16]byte) string { return fmt.Sprintf("%x", id) }

// An executor is a pool, a connection or a transaction.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// each runs a statement and scans each row.
func each(ctx context.Context, q executor, text string, scan func(rows *sql.Rows) error, args ...any) error {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// idsOf runs a statement that returns ids.
func idsOf(ctx context.Context, q executor, text string, args ...any) (ids []int64, err error) {
	err = each(ctx, q, text, scanInto(&ids), args...)
	return ids, err
}

// scanInto returns a scan of rows of one column, whose values it adds to all.
func scanInto[T any](all *[]T) func(rows *sql.Rows) error {
	return func(rows *sql.Rows) error {
		var one T
		err := rows.Scan(&one)
		*all = append(*all, one)
		return err
	}
}

// rowsOfKey returns the rows of a bucket behind an id, and their keys: of one key, or of
// all for "".
func (db *DB) rowsOfKey(ctx context.Context, q executor, transport, bucket int16, after int64, key string, limit int) (ids []int64, keys []string, err error) {
	err = each(ctx, q, db.outbox.Query("rows_of_key"), func(rows *sql.Rows) error {
		var id int64
		var key string
		err := rows.Scan(&id, &key)
		ids, keys = append(ids, id), append(keys, key)
		return err
	}, transport, bucket, after, []byte(key), []byte(key), limit)
	return ids, keys, err
}
