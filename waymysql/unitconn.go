package waymysql

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/waybill-go/waybill/internal/sqlcore"
)

// sentinel is the savepoint of a unit of work: when it is gone at the end, so is
// the transaction that the unit began.
const sentinel = "waybill"

// A unitConnector connects for units of work: its sessions have autocommit
// off, and a transaction begins with the sentinel instead of START TRANSACTION,
// which saves a round trip.
type unitConnector struct{ driver.Connector }

// Connect implements driver.Connector.
func (c unitConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := conn.(fullConn)
	if !ok {
		return nil, errors.Join(errIncomplete, conn.Close())
	}
	return &unitConn{fullConn: full}, nil
}

// A fullConn has the methods of the driver's connection that database/sql uses.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.NamedValueChecker
	driver.SessionResetter
	driver.Validator
}

// A unitConn is a connection for units of work. database/sql calls it, and its rows, by
// one goroutine at a time.
type unitConn struct {
	fullConn
	committed bool // the transaction was, by a statement of ours
	reading   int  // results that are open
}

// errIncomplete says that the driver has changed, or that the caller's pool has another.
var errIncomplete = errors.New("waymysql: the connection lacks a method of those of github.com/go-sql-driver/mysql: is there a wrapper around the driver?")

// QueryContext implements driver.QueryerContext.
func (c *unitConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.read(c.fullConn.QueryContext(ctx, query, args))
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *unitConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	s, err := c.fullConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	full, ok := s.(fullStmt)
	if !ok {
		return nil, errors.Join(errIncomplete, s.Close())
	}
	return unitStmt{full, c}, nil
}

// read counts a result as open until it is closed.
func (c *unitConn) read(rows driver.Rows, err error) (driver.Rows, error) {
	if err != nil {
		return nil, err
	}
	full, ok := rows.(fullRows)
	if !ok {
		return nil, errors.Join(errIncomplete, rows.Close())
	}
	c.reading++
	return &unitRows{full, c}, nil
}

// A fullStmt has the methods of the driver's statement that database/sql uses.
type fullStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
	driver.NamedValueChecker
}

type unitStmt struct {
	fullStmt
	conn *unitConn
}

// QueryContext implements driver.StmtQueryContext.
func (s unitStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.read(s.fullStmt.QueryContext(ctx, args))
}

// A fullRows has the methods of the driver's rows that database/sql uses.
type fullRows interface {
	driver.RowsNextResultSet
	driver.RowsColumnTypeScanType
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
}

type unitRows struct {
	fullRows
	conn *unitConn
}

// Close implements driver.Rows. database/sql calls it once.
func (r *unitRows) Close() error {
	r.conn.reading--
	return r.fullRows.Close()
}

// keepAlive shows the server that the process lives. The connection cannot send anything
// while a result is open.
func (c *unitConn) keepAlive(ctx context.Context) {
	if c.reading == 0 {
		_ = c.Ping(ctx) // the next statement fails as well
	}
}

// BeginTx implements driver.ConnBeginTx.
func (c *unitConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if opts != (driver.TxOptions{}) {
		return nil, errors.New("waymysql: a unit of work has the isolation level of its session")
	}
	if _, err := c.ExecContext(ctx, "SAVEPOINT "+sentinel, nil); err != nil {
		return nil, err
	}
	c.committed = false
	return unitConnTx{c}, nil
}

type unitConnTx struct{ conn *unitConn }

// Commit implements driver.Tx. It does nothing more when a statement of ours has
// committed.
func (tx unitConnTx) Commit() error {
	if tx.conn.committed {
		return nil
	}
	return tx.end("COMMIT")
}

// Rollback implements driver.Tx.
func (tx unitConnTx) Rollback() error { return tx.end("ROLLBACK") }

func (tx unitConnTx) end(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), sqlcore.RollbackTimeout)
	defer cancel()
	_, err := tx.conn.ExecContext(ctx, statement, nil)
	return err
}
