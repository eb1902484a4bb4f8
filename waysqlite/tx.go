package waysqlite

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill"
)

// A txn is a transaction that prepares each statement once: most of them run for many
// rows, and parsing costs ten times as much as running one.
type txn struct {
	*sql.Tx
	prepared map[string]*sql.Stmt
	kept     *statements // for other transactions too; nil in one that the caller began
}

func newTxn(tx *sql.Tx, kept *statements) *txn {
	return &txn{Tx: tx, prepared: map[string]*sql.Stmt{}, kept: kept}
}

// exec returns how many rows a statement has changed.
func (tx *txn) exec(ctx context.Context, query string, args ...any) (int, error) {
	stmt, err := tx.prepare(ctx, query)
	if err != nil {
		return 0, err
	}
	result, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// query returns the rows of a statement.
func (tx *txn) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	stmt, err := tx.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

func (tx *txn) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if stmt := tx.prepared[query]; stmt != nil {
		return stmt, nil
	}
	if tx.kept != nil {
		if stmt := tx.kept.get(query); stmt != nil {
			tx.prepared[query] = tx.StmtContext(ctx, stmt)
			return tx.prepared[query], nil
		}
	}
	stmt, err := tx.PrepareContext(ctx, query)
	if err == nil {
		tx.prepared[query] = stmt
	}
	return stmt, err
}

// close closes the statements of a transaction that continues.
func (tx *txn) close() {
	for _, stmt := range tx.prepared {
		_ = stmt.Close()
	}
}

// write runs fn in a transaction of the writer, on usable tables; ctx bounds the wait for
// it, but not its commit. Inside a unit of work, which holds the writer's only connection, it
// would deadlock and is refused.
func (db *DB) write(ctx context.Context, fn func(tx *txn) error) error {
	if waybill.InUnit(ctx, db) {
		return waybill.ErrNestedTransaction
	}
	if err := db.checkSchema(ctx); err != nil {
		return err
	}
	conn, err := db.writerConn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	tx, err := conn.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return translate(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(newTxn(tx, &db.kept)); err != nil {
		return translate(err)
	}
	return translate(tx.Commit())
}

// readPool returns the pool for a read of usable tables.
func (db *DB) readPool(ctx context.Context) (*sql.DB, error) {
	if err := db.checkSchema(ctx); err != nil {
		return nil, err
	}
	return db.freeReader(ctx)
}

// freeReader returns the pool for a read. In a pool of New the writer has the only connection:
// inside a unit of work, which holds it, a read would wait for ever and is refused.
func (db *DB) freeReader(ctx context.Context) (*sql.DB, error) {
	if db.reader == db.writer && waybill.InUnit(ctx, db) {
		return nil, waybill.ErrNestedTransaction
	}
	return db.reader, nil
}

// readRows is QueryContext of readPool.
func (db *DB) readRows(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	pool, err := db.readPool(ctx)
	if err != nil {
		return nil, err
	}
	return pool.QueryContext(ctx, query, args...)
}

// readRow scans the only row of a read, or returns sql.ErrNoRows.
func (db *DB) readRow(ctx context.Context, query string, args, into []any) error {
	pool, err := db.readPool(ctx)
	if err != nil {
		return err
	}
	return translate(pool.QueryRowContext(ctx, query, args...).Scan(into...))
}

// ids reads the only column of a result.
func ids(rows *sql.Rows, err error) (found []int64, _ error) {
	if err != nil {
		return nil, translate(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		found = append(found, id)
	}
	return found, translate(rows.Err())
}
