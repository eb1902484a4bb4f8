package waysqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
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

// orders returns n orders of a key.
func orders(key string, n int) (all []order) {
	for seq := range n {
		all = append(all, order{key, seq})
	}
	return all
}

// claim claims up to 100 rows of a part of the default transport.
func claim(t *testing.T, db *waysqlite.DB, part outbox.Part) outbox.Claim {
	t.Helper()
	c, err := db.Claim(t.Context(), outbox.DefaultTransport, part, outbox.ClaimLimit{Rows: 100, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// names lists rows: "a1 b1".
func names(rows []outbox.ClaimedRow) string {
	var all []string
	for _, row := range rows {
		var o order
		_ = waybill.JSON{}.Decode(row.Record.Body, &o)
		all = append(all, fmt.Sprint(o.Key, o.Seq))
	}
	return strings.Join(all, " ")
}

// want claims a part and fails unless it has those rows. The claim stays open.
func want(t *testing.T, db *waysqlite.DB, part outbox.Part, rows string) outbox.Claim {
	t.Helper()
	c := claim(t, db, part)
	if got := names(c.Rows()); got != rows {
		t.Fatalf("claim of %v: %q, want %q", part, got, rows)
	}
	return c
}

func settle(t *testing.T, c outbox.Claim, published []outbox.ClaimedRow, failed ...outbox.Failure) {
	t.Helper()
	if err := c.Settle(t.Context(), published, failed); err != nil {
		t.Fatal(err)
	}
}

// Kills: version not bumped by Settle.
func TestSettleBumpsTheVersionOfTheBlockedKeys(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	put(t, out, order{"a", 1})
	version := func() (v int) {
		if err := db.ReadSQL().QueryRow("SELECT blocked_version FROM waybill_transport WHERE name = 'default'").Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := version()
	c := claim(t, db, outbox.Keyed)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errors.New("refused")})
	blocked := version()
	c = want(t, db, outbox.Retries, "a1")
	settle(t, c, c.Rows())
	if released := version(); blocked == before || released == blocked {
		t.Errorf("blocked_version %d, after a block %d, after its release %d: want three values", before, blocked, released)
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
// would let the relay delete messages that the broker does not have.
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
	if left, err := db.Backlog(t.Context(), "default"); err != nil || left.Pending != 1 {
		t.Errorf("%d messages left (%v), want the one that the broker does not have", left.Pending, err)
	}
}
