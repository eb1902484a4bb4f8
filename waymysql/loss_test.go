package waymysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/worker"
)

// billing is a handler named h whose effect is a row.
type billing struct {
	t  *testing.T
	db *waymysql.DB
	// before and after run around the handler's write, unless they are nil.
	before, after func(ctx context.Context, tx *sql.Tx) error
	attempts      atomic.Int64
	bus           *waybill.Bus
}

func newBilling(t *testing.T, db *waymysql.DB) *billing {
	t.Helper()
	exec(t, db, "CREATE TABLE effects (n BIGINT AUTO_INCREMENT PRIMARY KEY, k VARCHAR(255) NOT NULL, seq INT NOT NULL)")
	exec(t, db, "CREATE TABLE other (n INT)")
	b := &billing{t: t, db: db, bus: waybill.NewBus("main")}
	inbox.Handle(b.bus, db, "h", func(ctx context.Context, tx *sql.Tx, m order) error {
		b.attempts.Add(1)
		if b.before != nil {
			if err := b.before(ctx, tx); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO effects (k, seq) VALUES (?, ?)", m.Key, m.Seq); err != nil {
			return err
		}
		if b.after != nil {
			return b.after(ctx, tx)
		}
		return nil
	})
	return b
}

func (b *billing) receive(rec *waybill.Record) error {
	return b.bus.HandleRecord(b.t.Context(), rec, "events", 0)
}

// remembered counts a message's completed rows in the inbox.
func (b *billing) remembered(id waybill.MessageID) int {
	b.t.Helper()
	return count(b.t, b.db, "SELECT COUNT(*) FROM waybill_inbox WHERE message_id = ? AND in_doubt = 0", id[:])
}

func (b *billing) effects() int {
	b.t.Helper()
	return count(b.t, b.db, "SELECT COUNT(*) FROM effects")
}

// swallow has the server roll the transaction back, and hides it, as wrappers do
// that repeat a statement after a deadlock.
func (b *billing) swallow(times int64) func(ctx context.Context, tx *sql.Tx) error {
	var done atomic.Int64
	var mu sync.Mutex
	return func(ctx context.Context, tx *sql.Tx) error {
		if done.Add(1) > times {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if err := deadlock(ctx, b.db.Pool(), tx); !isDeadlock(err) {
			b.t.Errorf("%v is no deadlock: the test proves nothing", err)
		}
		return nil
	}
}

// MariaDB from 11.6 on refuses to change a row that another transaction has changed since this one's
// snapshot. That is no failure of the message: its handler runs again.
func TestConflictWithASnapshotRunsTheHandlerAgain(t *testing.T) {
	t.Parallel()
	direct, dsn := newDB(t, waymysql.Config{})
	needsMariaDB(t, dsn, "MySQL has no innodb_snapshot_isolation")
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Params = map[string]string{"innodb_snapshot_isolation": "ON"}
	exec(t, direct, "CREATE TABLE stock (id INT PRIMARY KEY, n INT NOT NULL)")
	exec(t, direct, "INSERT INTO stock VALUES (1, 0)")
	db := open(t, cfg.FormatDSN(), waymysql.Config{})
	for together, options := range map[int][]inbox.Option{1: nil, 2: {inbox.Group(2), {Linger: time.Second}}} {
		exec(t, direct, "UPDATE stock SET n = 0")
		bus := waybill.NewBus("main")
		var runs atomic.Int64
		inbox.Handle(bus, db, fmt.Sprint("h", together), func(ctx context.Context, tx *sql.Tx, _ order) error {
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT n FROM stock").Scan(&n); err != nil {
				return err
			}
			if runs.Add(1) == 1 {
				exec(t, direct, "UPDATE stock SET n = n + 100")
			}
			_, err := tx.ExecContext(ctx, "UPDATE stock SET n = n + 1")
			return err
		}, options...)
		var all sync.WaitGroup
		for i := range together {
			rec := record(t, order{fmt.Sprint("k", i), 0})
			all.Go(func() {
				if err := bus.HandleRecord(t.Context(), rec, "events", 0); err != nil {
					t.Errorf("%d together: HandleRecord = %v", together, err)
				}
			})
		}
		all.Wait()
		if n := count(t, direct, "SELECT n FROM stock"); n != 100+together || runs.Load() <= int64(together) {
			t.Errorf("%d together: %d runs have left the stock at %d", together, runs.Load(), n)
		}
	}
}

// A1 of the hazards. The mutant no-savepoint-guard fails here.
func TestSwallowedDeadlockHasOneEffect(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	b := newBilling(t, db)
	for i, times := range []int64{1, 2, 100} {
		b.before = b.swallow(times)
		rec := record(t, order{"k", i})
		before := b.effects()
		err := b.receive(rec)
		if (err == nil) != (times < 5) || err != nil && !errors.Is(err, waybill.ErrTransactionLost) {
			t.Errorf("%d deadlocks: HandleRecord = %v", times, err)
		}
		if got := b.remembered(rec.ID); err == nil && got != 1 {
			t.Errorf("%d deadlocks: acknowledged without a row in the inbox (%d)", times, got)
		}
		if got := b.effects(); err != nil && got != before {
			t.Errorf("%d deadlocks: %d effects of an attempt that failed", times, got-before)
		}
		b.before = nil
		for range 2 {
			if err := b.receive(rec); err != nil {
				t.Errorf("%d deadlocks, redelivered: %v", times, err)
			}
		}
		if got := b.effects() - before; got != 1 || b.remembered(rec.ID) != 1 {
			t.Errorf("%d deadlocks: %d effects, want 1", times, got)
		}
	}
}

func TestWorkerWhoseHandlerSwallowsDeadlocksHasOneEffectEach(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	b := newBilling(t, db)
	b.before = b.swallow(4)
	q, err := db.Queue("q", waymysql.QueueConfig{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 12
	for i := range n {
		if err := q.Send(t.Context(), record(t, order{fmt.Sprint("k", i%6), i})); err != nil {
			t.Fatal(err)
		}
	}
	w, err := worker.New(b.bus, q, worker.Config{Concurrency: 4, Idle: 500 * time.Millisecond, Retry: waybill.Backoff{Delay: 5 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := count(t, db, "SELECT COUNT(*) FROM waybill_queue"); left != 0 {
		t.Errorf("%d messages were not handled", left)
	}
	if got, rows := b.effects(), count(t, db, "SELECT COUNT(*) FROM waybill_inbox WHERE in_doubt = 0"); got != n || rows != n {
		t.Errorf("%d effects and %d rows of the inbox, want %d", got, rows, n)
	}
	if got := count(t, db, "SELECT COUNT(DISTINCT k, seq) FROM effects"); got != n {
		t.Errorf("%d of %d messages had an effect", got, n)
	}
}

// A duplicate that waits for an attempt handles the message when the attempt is
// rolled back. That does not leave the message in doubt.
func TestDuplicateBesideALostTransactionStaysCertain(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	b := newBilling(t, db)
	rec := record(t, order{"k", 0})
	second := make(chan error, 1)
	var lost atomic.Bool
	b.before = func(ctx context.Context, tx *sql.Tx) error {
		if lost.Swap(true) {
			return nil
		}
		go func() { second <- b.receive(rec) }()
		await(t, "the duplicate waits", 60*time.Second, func() bool { return waiting(t, db) == 1 })
		if err := b.swallow(1)(ctx, tx); err != nil {
			t.Error(err)
		}
		if err := <-second; err != nil {
			t.Errorf("the duplicate = %v", err)
		}
		return nil
	}
	for range 2 {
		if err := b.receive(rec); err != nil {
			t.Errorf("HandleRecord = %v, want that it is a duplicate by now", err)
		}
	}
	if got := b.effects(); got != 1 || b.remembered(rec.ID) != 1 {
		t.Errorf("%d effects, want 1, and %d certain rows", got, b.remembered(rec.ID))
	}
}

var errIll = errors.New("something else went wrong")

// A handler's statement that commits leaves the message in doubt: whatever the
// handler returns, the message is neither acknowledged nor handled again until an
// operator has decided.
func TestHandlerWhoseStatementCommitsIsNeverAcknowledged(t *testing.T) {
	t.Parallel()
	ddl := map[string]string{"CREATE": "CREATE TABLE made (n INT)", "TRUNCATE": "TRUNCATE TABLE other", "ALTER": "ALTER TABLE other COMMENT = 'x'", "BEGIN": "START TRANSACTION"}
	ends := map[string]func(ctx context.Context, tx *sql.Tx) error{
		"nil":   func(context.Context, *sql.Tx) error { return nil },
		"error": func(context.Context, *sql.Tx) error { return errIll },
		"panic": func(context.Context, *sql.Tx) error { panic(errIll) },
		"killed": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "KILL CONNECTION_ID()")
			return err
		},
	}
	db, _ := newDB(t, waymysql.Config{})
	b := newBilling(t, db)
	seq := 0
	for what, statement := range ddl {
		for how, end := range ends {
			for _, first := range []bool{true, false} {
				name := fmt.Sprintf("%s, then %s, before the write %v", what, how, first)
				run := func(ctx context.Context, tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, statement)
					return err
				}
				b.before, b.after = nil, func(ctx context.Context, tx *sql.Tx) error { return errors.Join(run(ctx, tx), end(ctx, tx)) }
				if first {
					b.before, b.after = run, end
				}
				exec(t, db, "DROP TABLE IF EXISTS made")
				seq++
				rec := record(t, order{"k", seq})
				b.attempts.Store(0)
				effects := func() int { return count(t, db, "SELECT COUNT(*) FROM effects WHERE seq = ?", seq) }
				if err := b.receive(rec); err == nil {
					t.Errorf("%s: acknowledged", name)
				}
				after := effects()
				for range 3 {
					err := b.receive(rec)
					if err == nil || !waybill.IsUnrecoverable(err) || !strings.Contains(err.Error(), "in_doubt") || !strings.Contains(err.Error(), "waybill_inbox") || !strings.Contains(err.Error(), rec.ID.String()) {
						t.Errorf("%s: redelivered = %v, want an unrecoverable error that says what to do", name, err)
					}
				}
				if n := effects(); n != after || n > 1 || b.attempts.Load() != 1 {
					t.Errorf("%s: %d effects, then %d, by %d attempts", name, after, n, b.attempts.Load())
				}
				b.before, b.after = nil, nil
				if seq%2 == 0 { // the operator finds that it has happened
					exec(t, db, "UPDATE waybill_inbox SET in_doubt = 0 WHERE message_id = ?", rec.ID[:])
				} else {
					exec(t, db, "DELETE FROM waybill_inbox WHERE message_id = ?", rec.ID[:])
					after++
				}
				if err := b.receive(rec); err != nil || effects() != after {
					t.Errorf("%s: after the operator: %v, %d effects, want %d", name, err, effects(), after)
				}
			}
		}
	}
}

// A worker leaves a message in doubt in the queue, and continues with other keys.
func TestWorkerKeepsAMessageInDoubt(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	b := newBilling(t, db)
	b.before = func(ctx context.Context, tx *sql.Tx) error {
		if b.attempts.Load() == 1 {
			_, err := tx.ExecContext(ctx, "CREATE TABLE made (n INT)")
			return err
		}
		return nil
	}
	q, err := db.Queue("q", waymysql.QueueConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range []string{"a", "a", "b", "c"} {
		if err := q.Send(t.Context(), record(t, order{key, i})); err != nil {
			t.Fatal(err)
		}
	}
	w, err := worker.New(b.bus, q, worker.Config{Concurrency: 1, Idle: 400 * time.Millisecond, Retry: waybill.Backoff{Delay: 5 * time.Millisecond, MaxDelay: time.Hour, Jitter: -1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, got := count(t, db, "SELECT COUNT(*) FROM waybill_queue WHERE partition_key = 'a'"), b.effects(); left != 2 || got != 2 {
		t.Errorf("%d messages of the key in doubt are left, and %d effects of others: want 2 and 2", left, got)
	}
}

func TestUnitWhoseTransactionIsLostDispatchesNothing(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	b := newBilling(t, db)
	out := newOutbox(t, db, outbox.Config{})
	for what, lose := range map[string]func(ctx context.Context, tx *sql.Tx) error{
		"a deadlock": func(ctx context.Context, tx *sql.Tx) error { return b.swallow(1)(ctx, tx) },
		"DDL":        makeTable,
		"TRUNCATE": func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "TRUNCATE TABLE other")
			return err
		},
	} {
		for _, early := range []bool{true, false} {
			err := out.InTx(t.Context(), func(ctx context.Context, tx waymysql.Tx) error {
				if early {
					if err := lose(ctx, tx.SQL()); err != nil {
						return err
					}
				}
				_, err := tx.Dispatch(ctx, order{"k", 0})
				_, again := tx.Dispatch(ctx, order{"l", 0})
				if err := errors.Join(err, again); err != nil || early {
					return err
				}
				return lose(ctx, tx.SQL())
			})
			if !errors.Is(err, waybill.ErrTransactionLost) || errors.Is(err, waybill.ErrCommitUnknown) {
				t.Errorf("%s, early %v: InTx = %v, want ErrTransactionLost", what, early, err)
			}
		}
	}
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); n != 0 {
		t.Errorf("%d messages were dispatched", n)
	}
	// The sessions that lost their transactions are as good as any.
	if err := send(out, order{"k", 0}); err != nil {
		t.Error(err)
	}
	if got := drained(t, db); len(got) != 1 {
		t.Errorf("%v came, want one message", got)
	}
}

func TestTransactionOfAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"'STRICT_TRANS_TABLES'", "''"} {
		dsn := driverDSN(t, testserver.MariaDB(t))
		a := open(t, with(t, dsn, map[string]string{"sql_mode": mode}), waymysql.Config{Prefix: "a_"})
		b, other := newDB(t, waymysql.Config{})
		if _, err := a.SchemaUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		foreign, err := mysql.ParseDSN(other)
		if err != nil {
			t.Fatal(err)
		}
		// Tables of the same names, and a lane of the same number.
		twin := open(t, dsn, waymysql.Config{Schema: foreign.DBName, Prefix: "a_"})
		if _, err := twin.SchemaUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		out, _, _ := newOutbox(t, a, outbox.Config{To: "events"}), newOutbox(t, b, outbox.Config{To: "mail"}), newOutbox(t, twin, outbox.Config{To: "mail"})
		err = b.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := out.Dispatch(ctx, tx, order{"k", 1})
			return err
		})
		if err == nil {
			t.Error("a unit of work of another database was accepted")
		}
		// Names are qualified: rows written through another pool land in the right database.
		tx := begin(t, pool(t, other))
		if _, err := out.Dispatch(t.Context(), tx, order{"k", 1}); err != nil {
			t.Errorf("a transaction of the same server = %v", err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		// A server whose lanes are others: one row and several, with keys and without.
		exec(t, a, "UPDATE a_outbox_gate SET name = 'mail' WHERE name = 'events'")
		exec(t, a, "UPDATE a_transport SET name = 'mail' WHERE name = 'events'")
		for _, msgs := range [][]any{{order{"k", 1}}, {order{"", 1}}, {order{"k", 1}, order{"k", 2}, order{"k", 3}}, {order{"", 1}, order{"", 2}}, {order{"k", 1}, order{"l", 2}}} {
			tx := begin(t, pool(t, with(t, dsn, map[string]string{"sql_mode": mode})))
			if _, err := out.DispatchAll(t.Context(), tx, msgs...); err == nil {
				t.Errorf("sql_mode %s: %d messages for another database were accepted", mode, len(msgs))
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
