package waypg_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// inBoth runs a test with either library.
func inBoth(t *testing.T, db *waypg.DB, cfg outbox.Config, test func(t *testing.T, s session)) {
	t.Helper()
	for _, s := range sessions(t, db, cfg) {
		t.Run(s.name, func(t *testing.T) { test(t, s) })
	}
}

// pgx's own savepoints take their messages with them.
func TestNestedBeginTakesItsMessagesAlong(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		out := newOutbox(t, db, outbox.Config{})
		var kept pgx.Tx
		err := out.InTx(t.Context(), func(ctx context.Context, tx waypg.Tx) error {
			nested := func(in pgx.Tx, n int, end error, also func(pgx.Tx) error) error {
				return pgx.BeginFunc(ctx, in, func(tx pgx.Tx) error {
					kept = tx
					if _, err := out.Dispatch(ctx, tx, order{"k", n}); err != nil {
						return err
					}
					if also != nil {
						if err := also(tx); err != nil {
							return err
						}
					}
					return end
				})
			}
			if err := nested(tx.SQL(), 1, nil, func(in pgx.Tx) error { return nested(in, 2, nil, nil) }); err != nil {
				return err
			}
			if err := nested(tx.SQL(), 3, errChangedMind, func(in pgx.Tx) error { return nested(in, 4, nil, nil) }); !errors.Is(err, errChangedMind) {
				return fmt.Errorf("nested = %w", err)
			}
			if _, err := out.Dispatch(ctx, kept, order{"k", 9}); err == nil {
				t.Error("a message was taken for a savepoint that had ended")
			}
			if err := tx.SQL().Commit(ctx); err == nil {
				t.Error("Commit of a unit of work = nil")
			}
			if err := tx.SQL().Rollback(ctx); err == nil {
				t.Error("Rollback of a unit of work = nil")
			}
			return nested(tx.SQL(), 5, nil, nil)
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]order{{"k", 1}, {"k", 2}, {"k", 5}}, pending(t, db, outbox.DefaultTransport)); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
	})
}

func TestNestedUnitOfWorkOfEitherLibraryIsRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		both := sessions(t, db, outbox.Config{})
		for _, outer := range both {
			for _, inner := range both {
				err := outer.inTx(t.Context(), func(ctx context.Context, _ unit) error {
					return inner.inTx(ctx, func(context.Context, unit) error { return nil })
				})
				if !errors.Is(err, waybill.ErrNestedTransaction) {
					t.Errorf("%s in %s = %v, want ErrNestedTransaction", inner.name, outer.name, err)
				}
			}
		}
	})
}

// record is a message as it arrives.
func record(t testing.TB, o order) *waybill.Record {
	t.Helper()
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"key":%q,"seq":%d}`, o.Key, o.Seq)
	return &waybill.Record{ID: id, Name: "order.placed", Key: o.Key, Body: []byte(body), DispatchedAt: time.Now()}
}

func TestDeferredConstraintFailsTheUnit(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		exec(t, db, "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p int REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
		inBoth(t, db, outbox.Config{}, func(t *testing.T, s session) {
			for _, n := range []int{0, 1, 2} {
				err := s.inTx(t.Context(), func(ctx context.Context, tx unit) error {
					for i := range n {
						if _, err := tx.dispatch(ctx, order{"k", i}); err != nil {
							return err
						}
					}
					return tx.exec(ctx, "INSERT INTO c VALUES (7)")
				})
				if err == nil || errors.Is(err, waybill.ErrCommitUnknown) || errors.Is(err, waybill.ErrUnavailable) {
					t.Errorf("%d messages: InTx = %v, want a foreign key error", n, err)
				}
			}
			if got := pending(t, db, outbox.DefaultTransport); len(got) != 0 || count(t, db, "SELECT count(*) FROM c") != 0 {
				t.Errorf("%v left behind", got)
			}
		})
	})
}

// B4a of the hazards: a deferred constraint locks application rows, so it must
// be checked before the dispatch locks are taken.
func TestDeferredConstraintsAreCheckedBeforeTheDispatchLock(t *testing.T) {
	everywhere(t, testDeferredConstraintsAreCheckedBeforeTheDispatchLock)
}

func testDeferredConstraintsAreCheckedBeforeTheDispatchLock(t *testing.T, at opener) {
	db := open(t, at, waypg.Config{})
	exec(t, db, "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p int REFERENCES p DEFERRABLE INITIALLY DEFERRED); INSERT INTO p VALUES (1)")
	inBoth(t, db, outbox.Config{}, func(t *testing.T, s session) {
		holder, err := db.Pool().Begin(t.Context()) // has the parent row, and dispatches later
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback(context.Background())
		if _, err := holder.Exec(t.Context(), "SELECT FROM p FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- s.inTx(context.Background(), func(ctx context.Context, tx unit) error {
				if _, err := tx.dispatch(ctx, order{"k", 1}); err != nil {
					return err
				}
				return tx.exec(ctx, "INSERT INTO c VALUES (1)")
			})
		}()
		await(t, "the other waits for the row", 60*time.Second, func() bool {
			return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := newOutbox(t, db, outbox.Config{}).Dispatch(ctx, holder, order{"k", 0}); err != nil {
			t.Errorf("Dispatch by the holder of the row = %v, want no wait for a dispatch lock", err)
		}
		if err := holder.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestTransactionOfAnotherDatabaseIsRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		a, b := open(t, at, waypg.Config{}), open(t, at, waypg.Config{})
		out, other := newOutbox(t, a, outbox.Config{To: "events"}), newOutbox(t, b, outbox.Config{To: "mail"})
		err := other.InTx(t.Context(), func(ctx context.Context, tx waypg.Tx) error {
			_, err := out.Dispatch(ctx, tx.SQL(), order{"k", 1})
			return err
		})
		if err == nil {
			t.Error("a unit of work of another database was accepted")
		}
		tx, err := b.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := out.Dispatch(t.Context(), tx, order{"k", 1}); err == nil {
			t.Error("a transaction of another database was accepted")
		}
		std, err := outbox.New(a.SQL(), outbox.Config{To: "events"})
		if err != nil {
			t.Fatal(err)
		}
		stx, err := b.SQL().Pool().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer stx.Rollback()
		if _, err := std.Dispatch(t.Context(), stx, order{"", 1}); err == nil { // no key: no wait for the other
			t.Error("a *sql.Tx of another database was accepted")
		}
	})
}

// A pool without a free connection must not keep a caller whose context ends.
func TestWaitForAConnectionEndsWithTheContext(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	inBoth(t, db, outbox.Config{}, func(t *testing.T, s session) {
		for range db.Pool().Config().MaxConns {
			conn, err := db.Pool().Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- s.inTx(ctx, func(context.Context, unit) error { return nil }) }()
		select {
		case err := <-done:
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, waybill.ErrUnavailable) {
				t.Errorf("InTx = %v, want DeadlineExceeded and ErrUnavailable", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("InTx waits without end")
		}
	})
}

func TestGoroutinesMayDispatchInOneUnit(t *testing.T) {
	everywhere(t, testGoroutinesMayDispatchInOneUnit)
}

func testGoroutinesMayDispatchInOneUnit(t *testing.T, at opener) {
	db := open(t, at, waypg.Config{})
	inBoth(t, db, outbox.Config{}, func(t *testing.T, s session) {
		exec(t, db, "TRUNCATE waybill_outbox")
		err := s.inTx(t.Context(), func(ctx context.Context, tx unit) error {
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					if _, err := tx.dispatch(ctx, order{"k", i}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			return nil
		})
		if n := count(t, db, "SELECT count(*) FROM waybill_outbox"); err != nil || n != 50 {
			t.Errorf("%d of 50 messages, %v", n, err)
		}
	})
}

// cutter is a TCP proxy that drops the server's answers once it is told to, or
// once the client has sent word, or stops to read them after stall bytes.
type cutter struct {
	mu    sync.Mutex
	lose  bool
	word  string
	stall int           // zero means never
	over  chan struct{} // closed at the end of a stall
}

func (c *cutter) start(t testing.TB, target string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				return
			}
			all.Go(func() { defer server.Close(); defer client.Close(); c.pump(server, client, false) })
			all.Go(func() { defer server.Close(); defer client.Close(); c.pump(client, server, true) })
		}
	})
	return l.Addr().String()
}

func (c *cutter) pump(to, from net.Conn, answers bool) {
	buf, total := make([]byte, 64<<10), 0
	for {
		n, err := from.Read(buf)
		if err != nil || answers && c.drops(nil) {
			return
		}
		if !answers {
			c.drops(buf[:n])
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
		if total += n; answers && c.stall > 0 && total > c.stall {
			<-c.over
			return
		}
	}
}

func (c *cutter) drops(heard []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = c.lose || c.word != "" && bytes.Contains(heard, []byte(c.word))
	return c.lose
}

func (c *cutter) set(lose bool, word string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose, c.word = lose, word
}

// A connection that is lost before COMMIT was sent says nothing unknown.
func TestConnectionLostInsideTheUnitIsAKnownFailure(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		dsn := at(t)
		db, killer := openAt(t, dsn, waypg.Config{}), connect(t, dsn, waypg.Config{})
		inBoth(t, db, outbox.Config{}, func(t *testing.T, s session) {
			for _, n := range []int{0, 1} {
				err := s.inTx(t.Context(), func(ctx context.Context, tx unit) error {
					for range n {
						if _, err := tx.dispatch(ctx, order{"k", 1}); err != nil {
							return err
						}
					}
					exec(t, killer, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'")
					_ = tx.exec(ctx, "SELECT 1")
					return nil
				})
				if !errors.Is(err, waybill.ErrUnavailable) || errors.Is(err, waybill.ErrCommitUnknown) {
					t.Errorf("%d messages: InTx = %v, want ErrUnavailable", n, err)
				}
			}
		})
		if got := pending(t, killer, "default"); len(got) != 0 {
			t.Errorf("%v was dispatched", got)
		}
	})
}

// named is o under another name, which raw lets through.
func named(name string, o order) waybill.RawMessage {
	return waybill.RawMessage{Name: name, Key: o.Key, Body: fmt.Appendf(nil, `{"key":%q,"seq":%d}`, o.Key, o.Seq)}
}

func raw() outbox.Config {
	types := waybill.NewTypes()
	types.AllowRaw("big", "x", "y")
	return outbox.Config{Serializer: waybill.Serializer{Types: types}}
}
