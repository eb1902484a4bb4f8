package waysqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"testing"

	"modernc.org/sqlite"

	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/waytest"
)

// killable opens the database of path for a process that can be killed. Its transaction
// ends then without a commit, as that of a process that ends.
func killable(t *testing.T, path string) waytest.Process[*sql.Tx] {
	connector, err := sqlite.NewConnector("file:" + path + "?_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	k := &kill{}
	pool := sql.OpenDB(killableConnector{connector, k})
	pool.SetMaxOpenConns(1)
	db, err := waysqlite.New(pool, waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(db.Close(), pool.Close()); err != nil {
			t.Error(err)
		}
	})
	return waytest.Process[*sql.Tx]{Store: db, Retries: db.RetryQueueWithLease, KillAfter: k.after, Revive: k.revive}
}

// A kill ends the statements of a process.
type kill struct {
	mu     sync.Mutex
	left   int // statements before it strikes; 0 means never
	struck bool
}

var errKilled = errors.New("the process was killed")

func (k *kill) after(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = n
}

func (k *kill) revive() (struck bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	struck, k.struck, k.left = k.struck, false, 0
	return struck
}

// statement runs one, unless the process was killed before. If it is the last one its
// result is lost.
func (k *kill) statement(run func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.struck {
		return errKilled
	}
	err := run()
	if k.left == 1 {
		k.struck = true
		return errKilled
	}
	k.left = max(0, k.left-1)
	return err
}

type killableConnector struct {
	driver.Connector
	kill *kill
}

func (c killableConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return killableConn{conn, conn.(sqlite.HookRegisterer), c.kill}, nil
}

type killableConn struct {
	driver.Conn
	sqlite.HookRegisterer
	kill *kill
}

func (c killableConn) Prepare(query string) (driver.Stmt, error) {
	stmt, err := c.Conn.Prepare(query)
	return killableStmt{stmt, c.kill}, err
}

func (c killableConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	if wrong := c.kill.statement(func() error { tx, err = c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts); return err }); wrong != nil && tx != nil {
		_ = tx.Rollback()
		return nil, wrong
	}
	return killableTx{tx, c.kill}, err
}

type killableTx struct {
	driver.Tx
	kill *kill
}

func (tx killableTx) Commit() error {
	err := tx.kill.statement(tx.Tx.Commit)
	if errors.Is(err, errKilled) {
		_ = tx.Tx.Rollback() // without effect behind a commit
	}
	return err
}

type killableStmt struct {
	driver.Stmt
	kill *kill
}

func (s killableStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (result driver.Result, err error) {
	err = s.kill.statement(func() (err error) {
		result, err = s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
		return err
	})
	return result, err
}

func (s killableStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = s.kill.statement(func() (err error) {
		rows, err = s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
		return err
	})
	if err != nil && rows != nil {
		_ = rows.Close()
	}
	return rows, err
}
