package waysqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/waytest"
)

func TestOutbox(t *testing.T)  { waytest.Outbox(t, harness) }
func TestInbox(t *testing.T)   { waytest.Inbox(t, harness) }
func TestQueue(t *testing.T)   { waytest.Queue(t, harness) }
func TestRetries(t *testing.T) { waytest.Retries(t, harness) }

func TestSchedules(t *testing.T) { waytest.Schedules(t, harness) }

// harness is the conformance suites' database.
func harness(t *testing.T) waytest.Harness[*sql.Tx] {
	// Losing power is another test's matter.
	db := open(t, waysqlite.Config{Normal: true})
	p := waytest.SQLHarness(t, db, db.SQL(), "business")
	p.OneWriter, p.OneClaim = true, true
	p.Queue = func(name string, lease time.Duration) (waytest.Transport, error) {
		return db.Queue(name, waysqlite.QueueConfig{Lease: lease})
	}
	p.Retries = db.RetryQueueWithLease
	p.Killable = func(t *testing.T) waytest.Process[*sql.Tx] { return killable(t, db.Path()) }
	p.LockedQueue = func(t *testing.T, name string) (waytest.Transport, func()) {
		q, err := openAt(t, db.Path(), waysqlite.Config{BusyTimeout: 300 * time.Millisecond}).Queue(name, waysqlite.QueueConfig{})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := db.SQL().Begin()
		if err != nil {
			t.Fatal(err)
		}
		return q, func() { _ = tx.Rollback() }
	}
	p.Ends = map[string]func(ctx context.Context, tx *sql.Tx) error{
		"ROLLBACK":    waytest.ExecSQL("ROLLBACK"),
		"COMMIT":      waytest.ExecSQL("COMMIT"),
		"tx.Commit":   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		"tx.Rollback": func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
	}
	// SQLite rolls back by itself after these: later statements have no transaction.
	if _, err := db.SQL().Exec("CREATE TABLE once (n INTEGER PRIMARY KEY); INSERT INTO once VALUES (1); CREATE TABLE many (n INTEGER)"); err != nil {
		t.Fatal(err)
	}
	p.Losses = map[string]func(ctx context.Context, tx *sql.Tx) error{
		"INSERT OR ROLLBACK": waytest.ExecSQL("INSERT OR ROLLBACK INTO once VALUES (1)"),
		"a statement that was cut off": func(ctx context.Context, tx *sql.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond) // in which the statement begins
			defer cancel()
			return waytest.ExecSQL("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x < 100000000) INSERT INTO many SELECT x FROM n")(ctx, tx)
		},
	}
	p.LostAnswer = func(t *testing.T) (waytest.Store[*sql.Tx], func()) {
		connector, err := sqlite.NewConnector("file:" + db.Path() + "?_pragma=journal_mode(WAL)&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		lose := false
		pool := sql.OpenDB(lostAnswer{connector, &lose})
		pool.SetMaxOpenConns(1)
		other, err := waysqlite.New(pool, waysqlite.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			lose = false
			if err := errors.Join(other.Close(), pool.Close()); err != nil {
				t.Error(err)
			}
		})
		return other, func() { lose = true }
	}
	return p
}

// lostAnswer is the real driver behind a network that loses the answer to
// COMMIT: the commit happens and its result is an error.
type lostAnswer struct {
	driver.Connector
	lose *bool
}

func (l lostAnswer) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := l.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return lostAnswerConn{c, c.(sqlite.HookRegisterer), l.lose}, nil
}

type lostAnswerConn struct {
	driver.Conn
	sqlite.HookRegisterer
	lose *bool
}

func (c lostAnswerConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	return lostAnswerTx{tx, c.lose}, err
}

type lostAnswerTx struct {
	driver.Tx
	lose *bool
}

func (tx lostAnswerTx) Commit() error {
	err := tx.Tx.Commit()
	if err == nil && *tx.lose {
		return errors.New("connection reset by peer")
	}
	return err
}
