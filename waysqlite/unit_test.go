package waysqlite_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"modernc.org/sqlite"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

var errChangedMind = errors.New("changed my mind")

// pending returns the bodies that wait in the outbox, in order.
func pending(t testing.TB, db *waysqlite.DB, transport string) []order {
	t.Helper()
	claim, err := db.Claim(t.Context(), transport, outbox.Max{Rows: 1 << 20, Bytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if err := claim.Settle(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	var all []order
	for _, row := range claim.Rows() {
		var o order
		if err := (waybill.JSON{}).Decode(row.Record.Body, &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

func count(t testing.TB, db *waysqlite.DB, query string) (n int) {
	t.Helper()
	if err := db.ReadSQL().QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestRollbackLeavesNothing(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{Queues: map[string]string{"local": "local"}, Routes: waybill.Routes{"*": {"events", "local"}}})
	for name, end := range map[string]func(){"an error": func() {}, "a panic": func() { panic("boom") }} {
		func() {
			defer func() { _ = recover() }()
			err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
				for i, stamp := range []waybill.Stamp{waybill.PartitionKey("k"), waybill.Delay(time.Hour)} {
					if _, err := tx.Dispatch(ctx, order{"k", i}, stamp); err != nil {
						return err
					}
				}
				end()
				return errChangedMind
			})
			if !errors.Is(err, errChangedMind) {
				t.Errorf("after %s: InTx = %v", name, err)
			}
		}()
		for _, table := range []string{"outbox", "queue", "delayed"} {
			if n := count(t, db, "SELECT count(*) FROM waybill_"+table); n != 0 {
				t.Errorf("after %s: %d rows in %s", name, n, table)
			}
		}
	}
}

func TestSavepointRollbackRemovesExactlyItsMessages(t *testing.T) {
	db := open(t, waysqlite.Config{})
	if _, err := db.SQL().Exec("CREATE TABLE notes (n INTEGER)"); err != nil {
		t.Fatal(err)
	}
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		put := func(n int) error {
			if _, err := tx.SQL().Exec("INSERT INTO notes VALUES (?)", n); err != nil {
				return err
			}
			_, err := tx.Dispatch(ctx, order{"k", n})
			return err
		}
		if err := put(1); err != nil {
			return err
		}
		err := tx.Savepoint(ctx, func(ctx context.Context) error {
			if err := put(2); err != nil {
				return err
			}
			if err := tx.Savepoint(ctx, func(context.Context) error { return put(3) }); err != nil {
				return err
			}
			return errChangedMind
		})
		if !errors.Is(err, errChangedMind) {
			return fmt.Errorf("savepoint = %w", err)
		}
		if err := tx.Savepoint(ctx, func(context.Context) error { return put(4) }); err != nil {
			return err
		}
		return put(5)
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []order{{"k", 1}, {"k", 4}, {"k", 5}}
	if diff := cmp.Diff(want, pending(t, db, outbox.DefaultTransport)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if n := count(t, db, "SELECT count(*) FROM notes WHERE n IN (1, 4, 5)"); n != 3 || count(t, db, "SELECT count(*) FROM notes") != 3 {
		t.Errorf("the application's rows do not match its messages")
	}
}

// The law of units of work: what the outbox holds is what the transactions and
// savepoints that committed dispatched, in their order.
func TestOutboxHoldsExactlyWhatCommitted(t *testing.T) {
	db := open(t, waysqlite.Config{Normal: true})
	out := newOutbox(t, db, outbox.Config{})
	rapid.Check(t, func(rt *rapid.T) {
		if _, err := db.SQL().Exec("DELETE FROM waybill_outbox"); err != nil {
			rt.Fatal(err)
		}
		want := []order{}
		seq := 0
		for range rapid.IntRange(1, 4).Draw(rt, "transactions") {
			var kept []order
			var nest func(ctx context.Context, tx waysqlite.Tx, depth int) error
			nest = func(ctx context.Context, tx waysqlite.Tx, depth int) error {
				for range rapid.IntRange(0, 4).Draw(rt, "actions") {
					if depth < 3 && rapid.IntRange(0, 3).Draw(rt, "nest") == 0 {
						before := len(kept)
						err := tx.Savepoint(ctx, func(ctx context.Context) error { return nest(ctx, tx, depth+1) })
						if errors.Is(err, errChangedMind) {
							kept = kept[:before]
						} else if err != nil {
							return err
						}
						continue
					}
					seq++
					m := order{rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "key"), seq}
					if _, err := tx.Dispatch(ctx, m); err != nil {
						return err
					}
					kept = append(kept, m)
				}
				if rapid.IntRange(0, 3).Draw(rt, "fail") == 0 {
					return errChangedMind
				}
				return nil
			}
			err := out.InTx(context.Background(), func(ctx context.Context, tx waysqlite.Tx) error { return nest(ctx, tx, 0) })
			switch {
			case err == nil:
				want = append(want, kept...)
			case !errors.Is(err, errChangedMind):
				rt.Fatal(err)
			}
		}
		got := append([]order{}, pending(t, db, outbox.DefaultTransport)...)
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("outbox (-want +got):\n%s", diff)
		}
	})
}

func TestInterleavedKeysOfOneTransactionKeepTheirOrder(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		for i := range 10 {
			if _, err := tx.Dispatch(ctx, order{string(rune('p' + i%2)), i}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	for _, key := range []string{"p", "q"} {
		var seqs []int
		for _, o := range sink.got {
			if o.Key == key {
				seqs = append(seqs, o.Seq)
			}
		}
		first := int(key[0] - 'p')
		if diff := cmp.Diff([]int{first, first + 2, first + 4, first + 6, first + 8}, seqs); diff != "" {
			t.Errorf("key %s (-want +got):\n%s", key, diff)
		}
	}
}

func TestNestedUnitOfWorkIsRefused(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, _ waysqlite.Tx) error {
		return out.InTx(ctx, func(context.Context, waysqlite.Tx) error { return nil })
	})
	if !errors.Is(err, waybill.ErrNestedTransaction) {
		t.Errorf("InTx in InTx = %v, want ErrNestedTransaction", err)
	}
	bus := waybill.NewBus("main")
	inbox.Handle(bus, db, "h", func(ctx context.Context, _ *sql.Tx, _ order) error {
		return out.InTx(ctx, func(context.Context, waysqlite.Tx) error { return nil })
	})
	id, _ := waybill.NewMessageID()
	err = bus.HandleRecord(t.Context(), &waybill.Record{ID: id, Name: "order.placed", Body: []byte("{}"), DispatchedAt: time.Now()}, "events", 0)
	if !errors.Is(err, waybill.ErrNestedTransaction) {
		t.Errorf("InTx in an inbox handler = %v, want ErrNestedTransaction", err)
	}
}

func TestHandlerThatDispatchesAndFailsLeavesNothing(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	fail := true
	bus := waybill.NewBus("main")
	inbox.Handle(bus, db, "h", func(ctx context.Context, tx *sql.Tx, m order) error {
		if _, err := out.Dispatch(ctx, tx, order{m.Key, m.Seq + 1}); err != nil {
			return err
		}
		if fail {
			return errChangedMind
		}
		return nil
	})
	id, _ := waybill.NewMessageID()
	rec := &waybill.Record{ID: id, Name: "order.placed", Key: "k", Body: []byte(`{"key":"k","seq":1}`), DispatchedAt: time.Now()}
	if err := bus.HandleRecord(t.Context(), rec, "events", 0); !errors.Is(err, errChangedMind) {
		t.Fatalf("first attempt = %v", err)
	}
	if got := pending(t, db, outbox.DefaultTransport); len(got) != 0 || count(t, db, "SELECT count(*) FROM waybill_inbox") != 0 {
		t.Errorf("a failed handler left %v and its inbox row", got)
	}
	fail = false
	for range 2 { // the second delivery is a duplicate
		if err := bus.HandleRecord(t.Context(), rec, "events", 1); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]order{{"k", 2}}, pending(t, db, outbox.DefaultTransport)); diff != "" {
		t.Errorf("outbox after success and a duplicate (-want +got):\n%s", diff)
	}
}

func TestDispatchInTheCallersOwnTransactionIsWrittenAtOnce(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	for _, commit := range []bool{false, true} {
		tx, err := db.SQL().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Dispatch(t.Context(), tx, order{"k", 1}); err != nil {
			t.Fatal(err)
		}
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if got := len(pending(t, db, outbox.DefaultTransport)); (got == 1) != commit {
			t.Errorf("commit %v: %d messages", commit, got)
		}
	}
}

func TestTransactionEndedInsideItsFunctionIsAnError(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		if _, err := tx.Dispatch(ctx, order{"k", 1}); err != nil {
			return err
		}
		return tx.SQL().Commit()
	})
	if err == nil || errors.Is(err, waybill.ErrCommitUnknown) {
		t.Errorf("InTx = %v, want an error", err)
	}
	if got := pending(t, db, outbox.DefaultTransport); len(got) != 0 {
		t.Errorf("%v was dispatched", got)
	}
}

func TestCancelledContextRollsBack(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	err := out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
		if _, err := tx.Dispatch(ctx, order{"k", 1}); err != nil {
			return err
		}
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, waybill.ErrCommitUnknown) {
		t.Errorf("InTx = %v, want context.Canceled", err)
	}
	if got := pending(t, db, outbox.DefaultTransport); len(got) != 0 {
		t.Errorf("%v left behind", got)
	}
}

func TestFailedCommitIsKnownToHaveFailed(t *testing.T) {
	db := open(t, waysqlite.Config{})
	if _, err := db.SQL().Exec("CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (p INTEGER REFERENCES p DEFERRABLE INITIALLY DEFERRED)"); err != nil {
		t.Fatal(err)
	}
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		if _, err := tx.SQL().Exec("INSERT INTO c VALUES (7)"); err != nil {
			return err
		}
		_, err := tx.Dispatch(ctx, order{"k", 1})
		return err
	})
	if err == nil || errors.Is(err, waybill.ErrCommitUnknown) {
		t.Errorf("InTx = %v, want a foreign key error", err)
	}
	if got := pending(t, db, outbox.DefaultTransport); len(got) != 0 {
		t.Errorf("%v left behind", got)
	}
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

func TestCommitWhoseResultIsUnknownNamesItsMessages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "waybill.db")
	openAt(t, path, waysqlite.Config{})
	connector, err := sqlite.NewConnector("file:" + path + "?_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	lose := false
	pool := sql.OpenDB(lostAnswer{connector, &lose})
	defer pool.Close()
	if _, err := waysqlite.New(pool, waysqlite.Config{}); err == nil || !strings.Contains(err.Error(), "SetMaxOpenConns(1)") {
		t.Errorf("New with an unlimited pool = %v, want a refusal that says what to call", err)
	}
	pool.SetMaxOpenConns(1)
	db, err := waysqlite.New(pool, waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	out := newOutbox(t, db, outbox.Config{Routes: waybill.Routes{"*": {"a", "b"}}})
	lose = true
	var ids []waybill.MessageID
	err = out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		for i := range 2 {
			id, err := tx.Dispatch(ctx, order{"k", i})
			if err != nil {
				return err
			}
			ids = append(ids, id)
		}
		return nil
	})
	lose = false
	var unknown *waybill.CommitUnknownError
	if !errors.As(err, &unknown) || !errors.Is(err, waybill.ErrCommitUnknown) {
		t.Fatalf("InTx = %v, want ErrCommitUnknown", err)
	}
	if diff := cmp.Diff(ids, unknown.IDs); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
	if got := pending(t, db, "a"); len(got) != 2 {
		t.Errorf("this time it did commit, but the outbox has %v", got)
	}
}
