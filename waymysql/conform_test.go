package waymysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waytest"
)

func TestOutbox(t *testing.T) {
	t.Parallel()
	waytest.Outbox(t, harness)
}

func TestInbox(t *testing.T) {
	t.Parallel()
	waytest.Inbox(t, harness)
}

func TestQueue(t *testing.T) {
	t.Parallel()
	waytest.Queue(t, harness)
}

func TestRetries(t *testing.T) {
	t.Parallel()
	waytest.Retries(t, harness)
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	waytest.Schedules(t, harness)
}

// The same on a pool of the caller's, for what borrowed sessions have to do with.
func TestDispatchOnACallersPool(t *testing.T) {
	t.Parallel()
	waytest.Dispatch(t, borrowing)
}

func TestInboxOnACallersPool(t *testing.T) {
	t.Parallel()
	waytest.Inbox(t, borrowing)
}

func TestQueueOnACallersPool(t *testing.T) {
	t.Parallel()
	waytest.Queue(t, borrowing)
}

func harness(t *testing.T) waytest.Harness[*sql.Tx] { return harnessBy(t, open) }

func borrowing(t *testing.T) waytest.Harness[*sql.Tx] { return harnessBy(t, borrow) }

// borrow makes a database on a pool with the parameters that New needs.
func borrow(t testing.TB, dsn string, cfg waymysql.Config) *waymysql.DB {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c.InterpolateParams = true
	db, err := waymysql.New(pool(t, c.FormatDSN()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func harnessBy(t *testing.T, open func(t testing.TB, dsn string, cfg waymysql.Config) *waymysql.DB) waytest.Harness[*sql.Tx] {
	through := func(t *testing.T, dsn string) (*waymysql.DB, *faultproxy.Proxy) {
		to, network := proxied(t, dsn)
		return open(t, to, waymysql.Config{}), network
	}
	dsn := driverDSN(t, testserver.MariaDB(t))
	db := open(t, dsn, waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := waytest.SQLHarness(t, db, db.Pool(), "business")
	p.Another = func(t *testing.T) waytest.Store[*sql.Tx] { return open(t, dsn, waymysql.Config{}) }
	p.Crashing = func(t *testing.T) (waytest.Store[*sql.Tx], func()) {
		db, network := through(t, dsn)
		return db, func() { network.Reset() }
	}
	p.Impatient = func(t *testing.T) (waytest.Store[*sql.Tx], time.Duration) {
		return open(t, dsn, waymysql.Config{IdleTimeout: 2 * time.Second}), 2 * time.Second
	}
	p.Queue = func(name string, lease time.Duration) (waytest.Transport, error) {
		return db.Queue(name, waymysql.QueueConfig{Lease: lease})
	}
	p.Retries = db.RetryQueueWithLease
	p.Killable = func(t *testing.T) waytest.Process[*sql.Tx] { return killable(t, dsn) }
	p.LockedQueue = func(t *testing.T, name string) (waytest.Transport, func()) {
		q, err := open(t, with(t, dsn, map[string]string{"innodb_lock_wait_timeout": "1"}), waymysql.Config{}).Queue(name, waymysql.QueueConfig{})
		if err != nil {
			t.Fatal(err)
		}
		tx := begin(t, db.Pool())
		if err := waytest.ExecSQL("SELECT bucket FROM waybill_outbox_gate WHERE transport = -1 FOR UPDATE")(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
		return q, func() { _ = tx.Rollback() }
	}
	p.Bucket = func(ctx context.Context, id waybill.MessageID) (bucket int, err error) {
		err = db.Pool().QueryRowContext(ctx, "SELECT bucket FROM waybill_outbox WHERE message_id = ? UNION ALL SELECT -1 FROM waybill_outbox_unkeyed WHERE message_id = ?", id[:], id[:]).Scan(&bucket)
		return bucket, err
	}
	p.Ends = map[string]func(ctx context.Context, tx *sql.Tx) error{
		"ROLLBACK": waytest.ExecSQL("ROLLBACK"), "COMMIT": waytest.ExecSQL("COMMIT"), "tx.Commit": func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
	}
	p.Losses = map[string]func(ctx context.Context, tx *sql.Tx) error{
		"a deadlock": func(ctx context.Context, tx *sql.Tx) error {
			err := deadlock(ctx, db.Pool(), tx)
			if !isDeadlock(err) {
				t.Errorf("%v is no deadlock: the test proves nothing", err)
			}
			return err
		},
	}
	p.LostAnswer = func(t *testing.T) (waytest.Store[*sql.Tx], func()) {
		db, network := through(t, dsn)
		return db, func() { loseCommit(network) }
	}
	return p
}

// proxied returns the address of a proxy of the database.
func proxied(t *testing.T, dsn string) (string, *faultproxy.Proxy) {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	network, err := faultproxy.Start(cfg.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	cfg.Addr = network.Addr()
	return cfg.FormatDSN(), network
}

// killable opens a database for a process that can be killed. It sends its statements
// one by one.
func killable(t *testing.T, dsn string) waytest.Process[*sql.Tx] {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	kill, err := faultproxy.StartKillSwitch(cfg.Addr, faultproxy.MySQLStatements)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kill.Close)
	cfg.Addr = kill.Addr()
	db := open(t, cfg.FormatDSN(), waymysql.Config{})
	if err := db.WithoutCompounds(t.Context()); err != nil {
		t.Fatal(err)
	}
	return waytest.Process[*sql.Tx]{Store: db, Retries: db.RetryQueueWithLease, KillAfter: kill.KillAfter, Revive: kill.Revive}
}

// loseCommit cuts the connection when the answer to the next COMMIT comes.
func loseCommit(network *faultproxy.Proxy) {
	var sent atomic.Bool
	network.OnBytes(func(dir faultproxy.Direction, b []byte) faultproxy.Action {
		switch {
		case dir == faultproxy.ToServer && bytes.Contains(b, []byte("COMMIT")):
			sent.Store(true)
		case dir == faultproxy.ToClient && sent.Load():
			return faultproxy.CutBefore
		}
		return faultproxy.Pass
	})
}

func isDeadlock(err error) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && server.Number == 1213
}

// deadlock has the server roll tx back for a deadlock with another transaction,
// which has written more and so is not the one that is chosen.
func deadlock(ctx context.Context, pool *sql.DB, tx *sql.Tx) error {
	for _, s := range []string{"CREATE TABLE IF NOT EXISTS knot (id INT PRIMARY KEY, n INT)", "INSERT IGNORE INTO knot SELECT seq, 0 FROM " + numbers(100) + " AS s"} {
		if _, err := pool.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("it proves nothing: %w", err)
		}
	}
	other, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer other.Rollback()
	if _, err := other.ExecContext(ctx, "UPDATE knot SET n = n + 1 WHERE id >= 2"); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE knot SET n = n + 1 WHERE id = 1"); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(ctx, "UPDATE knot SET n = n + 1 WHERE id = 1")
		done <- err
	}()
	time.Sleep(100 * time.Millisecond) // it waits
	_, err = tx.ExecContext(ctx, "UPDATE knot SET n = n + 1 WHERE id = 2")
	if otherErr := <-done; otherErr != nil {
		return fmt.Errorf("the server chose the other one: %w", otherErr)
	}
	return err
}
