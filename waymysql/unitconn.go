package waymysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
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
		return nil, errors.Join(errors.New("waymysql: the driver's connection lacks a method that it had"), conn.Close())
	}
	return &unitConn{fullConn: full}, nil
}

// A fullConn has the methods of the driver's connection that database/sql uses.
type fullConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.NamedValueChecker
	driver.SessionResetter
	driver.Validator
}

// A unitConn is a connection for units of work.
type unitConn struct {
	fullConn
	committed bool // the transaction was, by a statement of ours
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

// Begin implements driver.Conn.
func (c *unitConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
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
	_, err := tx.conn.ExecContext(context.Background(), statement, nil)
	return err
}

// unitConnOf returns the driver's connection of a unit of work. While the unit's
// transaction is open, the unit alone uses it.
func unitConnOf(conn *sql.Conn) (c *unitConn, err error) {
	err = conn.Raw(func(raw any) error { c = raw.(*unitConn); return nil })
	return c, err
}

// alive checks the connection without sending anything.
func (c *unitConn) alive(ctx context.Context) error { return c.ResetSession(ctx) }
