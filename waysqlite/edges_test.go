package waysqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// put dispatches orders in one unit of work.
func put(t *testing.T, out *outbox.Outbox[*sql.Tx], orders ...order) {
	t.Helper()
	err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		for _, o := range orders {
			if _, err := tx.Dispatch(ctx, o); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// claimed names what a claim has: "a1 b1".
func claimed(t *testing.T, db *waysqlite.DB) (outbox.Claim, string) {
	t.Helper()
	c, err := db.Claim(t.Context(), "default", outbox.Max{Rows: 100, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	for _, row := range c.Rows() {
		names += row.Record.Key + string(row.Record.Body[len(row.Record.Body)-2:len(row.Record.Body)-1]) + " "
	}
	return c, names
}

func settle(t *testing.T, c outbox.Claim, published []outbox.ClaimedRow, failed ...outbox.Failure) {
	t.Helper()
	if err := c.Settle(t.Context(), published, failed); err != nil {
		t.Fatal(err)
	}
}

// Kills: cursor skips the head, cursor not reset when due, cursor not reset on
// the version, version not bumped.
func TestCursorNeverPassesARowThatIsDue(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	put(t, out, order{"a", 1}, order{"a", 2}, order{"b", 1}, order{"b", 2}, order{"c", 1})
	refused := errors.New("refused")

	c, got := claimed(t, db)
	if want := "a1 a2 b1 b2 c1 "; got != want {
		t.Fatalf("first claim %q, want %q", got, want)
	}
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: refused, RetryIn: 300 * time.Millisecond})
	// The cursor now stands before b1. An outage: b1 is not settled and must
	// come again, before b2.
	for range 2 {
		if c, got = claimed(t, db); got != "b1 b2 c1 " {
			t.Fatalf("claim beside a waiting key %q, want b1 b2 c1", got)
		}
		settle(t, c, nil)
	}
	// b is refused for long; a is due first and must not wait for b.
	settle2, _ := claimed(t, db)
	settle(t, settle2, settle2.Rows()[2:], outbox.Failure{Row: settle2.Rows()[0], Err: refused, RetryIn: time.Hour})
	if _, got = claimed(t, db); got != "" {
		t.Fatalf("claim while all keys wait %q, want nothing", got)
	}
	put(t, out, order{"d", 1})
	time.Sleep(310 * time.Millisecond)
	if c, got = claimed(t, db); got != "a1 a2 d1 " {
		t.Fatalf("claim when a is due %q, want a1 a2 d1", got)
	}
	settle(t, c, c.Rows()[:1])
	if c, got = claimed(t, db); got != "a2 d1 " {
		t.Fatalf("claim after the head got through %q, want a2 d1", got)
	}
	settle(t, c, c.Rows()[:1])
	if c, got = claimed(t, db); got != "d1 " { // the cursor now stands before d1
		t.Fatalf("claim beside b %q, want d1", got)
	}
	settle(t, c, nil)
	// Another process changes the lane's blocked keys, as an operator's command
	// does: it deletes the entry and bumps the version.
	if _, err := db.SQL().Exec("DELETE FROM waybill_outbox_blocked; UPDATE waybill_outbox_lane SET blocked_version = blocked_version + 1"); err != nil {
		t.Fatal(err)
	}
	if c, got = claimed(t, db); got != "b1 b2 d1 " {
		t.Fatalf("claim after the block was lifted %q, want b1 b2 d1", got)
	}
	settle(t, c, nil)
}

// Kills: version not bumped by Settle.
func TestSettleBumpsTheVersionOfTheBlockedKeys(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	put(t, out, order{"a", 1})
	version := func() (v int) {
		if err := db.ReadSQL().QueryRow("SELECT blocked_version FROM waybill_outbox_lane WHERE name = 'default'").Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := version()
	c, _ := claimed(t, db)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errors.New("refused")})
	blocked := version()
	c, _ = claimed(t, db)
	settle(t, c, c.Rows())
	if released := version(); blocked == before || released == blocked {
		t.Errorf("blocked_version %d, after a block %d, after its release %d: want three values", before, blocked, released)
	}
}

// Kills: due_to_outbox and due_to_queue in another order, and an age that counts
// from dispatch.
func TestDelayedMessagesOfAKeyMoveInTheOrderTheyAreDue(t *testing.T) {
	for _, transport := range []string{"default", "q"} {
		db := open(t, waysqlite.Config{})
		out := newOutbox(t, db, outbox.Config{To: transport, Queues: map[string]string{"q": "q"}})
		err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
			for seq, delay := range map[int]time.Duration{3: 60, 1: 20, 2: 40} {
				if _, err := tx.Dispatch(ctx, order{"a", seq}, waybill.Delay(delay*time.Millisecond)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // all are due at one look
		var recs []*waybill.Record
		if transport == "q" {
			ds, err := newQueue(t, db, "q", waysqlite.QueueConfig{}).Receive(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range ds {
				recs = append(recs, d.Record)
			}
		} else {
			c, _ := claimed(t, db)
			for _, row := range c.Rows() {
				recs = append(recs, row.Record)
			}
		}
		if len(recs) != 3 {
			t.Fatalf("%s: %d messages, want 3", transport, len(recs))
		}
		for i, rec := range recs {
			if want := fmt.Sprintf(`{"key":"a","seq":%d}`, i+1); string(rec.Body) != want {
				t.Errorf("%s: message %d is %s, want %s", transport, i, rec.Body, want)
			}
			if i > 0 && rec.DispatchedAt.Sub(recs[i-1].DispatchedAt) < 15*time.Millisecond {
				t.Errorf("%s: aged from %v after %v, want from the times they were due", transport, rec.DispatchedAt, recs[i-1].DispatchedAt)
			}
		}
	}
}

// Kills: holder not compared at Ack.
func TestOnlyTheHolderSettles(t *testing.T) {
	db := open(t, waysqlite.Config{})
	one, two := newQueue(t, db, "q", waysqlite.QueueConfig{}), newQueue(t, db, "q", waysqlite.QueueConfig{})
	if err := one.Send(t.Context(), &waybill.Record{ID: waybill.MessageID{1}, Name: "x", DispatchedAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	ds, err := one.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := two.Ack(t.Context(), ds...); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("Ack by another receiver = %v, want ErrLeaseLost", err)
	}
	if err := one.Ack(t.Context(), ds...); err != nil {
		t.Errorf("Ack by the holder = %v", err)
	}
}

// Kills: a unit without messages commits though its context ended.
func TestCancelledContextRollsBackAUnitWithoutMessages(t *testing.T) {
	db := open(t, waysqlite.Config{})
	if _, err := db.SQL().Exec("CREATE TABLE app (x INTEGER)"); err != nil {
		t.Fatal(err)
	}
	out := newOutbox(t, db, outbox.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	err := out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
		_, err := tx.SQL().ExecContext(ctx, "INSERT INTO app VALUES (1)")
		cancel()
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("InTx = %v, want context.Canceled", err)
	}
	var n int
	if err := db.ReadSQL().QueryRow("SELECT count(*) FROM app").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows (%v), want 0", n, err)
	}
}

// Kills: synchronous=NORMAL (P1 durable), deferred transactions.
func TestConnectionsAreDurableAndImmediate(t *testing.T) {
	for cfg, want := range map[waysqlite.Config]int{{}: 2, {Normal: true}: 1} {
		db := open(t, cfg)
		var got int
		if err := db.SQL().QueryRow("PRAGMA synchronous").Scan(&got); err != nil || got != want {
			t.Errorf("%+v: synchronous %d (%v), want %d", cfg, got, err, want)
		}
	}
	db := open(t, waysqlite.Config{})
	other := openAt(t, db.Path(), waysqlite.Config{BusyTimeout: time.Millisecond})
	tx, err := db.SQL().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if second, err := other.SQL().Begin(); err == nil {
		_ = second.Rollback()
		t.Error("two transactions are open for writing: they do not begin immediately")
	}
}

// Kills: a failed COMMIT of a queue's transaction taken for a success, which
// would let the relay delete what the broker does not have.
func TestQueueReportsACommitThatFailed(t *testing.T) {
	db, broker := open(t, waysqlite.Config{}), open(t, waysqlite.Config{})
	if _, err := broker.SQL().Exec(`CREATE TABLE parent (id INTEGER PRIMARY KEY);
		CREATE TABLE child (p INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
		CREATE TRIGGER at_commit AFTER INSERT ON waybill_queue BEGIN INSERT INTO child VALUES (99); END`); err != nil {
		t.Fatal(err)
	}
	q := newQueue(t, broker, "q", waysqlite.QueueConfig{})
	if err := q.Send(t.Context(), &waybill.Record{ID: waybill.MessageID{1}, Name: "x", DispatchedAt: time.Now()}); err == nil {
		t.Error("Send = nil, want the error of COMMIT")
	}
	put(t, newOutbox(t, db, outbox.Config{}), order{"a", 1})
	relay, err := outbox.NewRelay(db, q, outbox.RelayConfig{Drain: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := db.Left(t.Context(), "default"); err != nil || left.Pending != 1 {
		t.Errorf("%d messages left (%v), want the one that the broker does not have", left.Pending, err)
	}
}

// Kills: Queue.Send that ignores the delay.
func TestQueueKeepsADelayedMessageBack(t *testing.T) {
	db := open(t, waysqlite.Config{})
	q := newQueue(t, db, "q", waysqlite.QueueConfig{})
	sent := time.Now()
	if err := q.Send(t.Context(), &waybill.Record{ID: waybill.MessageID{1}, Name: "x", DispatchedAt: sent, Delay: 80 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Receive(t.Context(), 1); err != nil || time.Since(sent) < 80*time.Millisecond {
		t.Errorf("received after %v (%v), want 80 ms", time.Since(sent), err)
	}
}

// Kills: a panic in a savepoint that is swallowed or keeps its messages.
func TestPanicInASavepointUndoesItAndGoesOn(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		func() {
			defer func() {
				if v := recover(); v != "boom" {
					t.Errorf("recovered %v, want the panic of the function", v)
				}
			}()
			_ = tx.Savepoint(ctx, func(ctx context.Context) error {
				if _, err := tx.Dispatch(ctx, order{"a", 1}); err != nil {
					t.Error(err)
				}
				panic("boom")
			})
		}()
		_, err := tx.Dispatch(ctx, order{"a", 2})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if c, got := claimed(t, db); got != "a2 " {
		t.Errorf("dispatched %q, want a2 alone", got)
	} else {
		settle(t, c, nil)
	}
}
