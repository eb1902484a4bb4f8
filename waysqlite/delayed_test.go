package waysqlite_test

import (
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// later dispatches delayed orders and makes them due.
func later(t *testing.T, db *waysqlite.DB, orders ...order) {
	t.Helper()
	var msgs []any
	for _, o := range orders {
		msgs = append(msgs, waybill.NewEnvelope(o, waybill.Delay(time.Hour)))
	}
	dispatch(t, db, outbox.Config{}, msgs...)
	if _, err := db.SQL().Exec("UPDATE waybill_delayed SET due_at = id"); err != nil {
		t.Fatal(err)
	}
}

// A delayed message that the outbox refuses stays delayed, and stops no other
// (C10).
func TestRefusedDelayedMessageIsSetAside(t *testing.T) {
	db := open(t, waysqlite.Config{})
	later(t, db, order{"a", 0}, order{"bad", 0}, order{"a", 1}, order{"", 0})
	if _, err := db.SQL().Exec(`CREATE TRIGGER refuses BEFORE INSERT ON waybill_outbox WHEN new.partition_key = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END`); err != nil {
		t.Fatal(err)
	}
	want(t, db, outbox.Keyed, "a0 a1")
	want(t, db, outbox.Unkeyed, "0")
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{Pending: 4, Blocked: 1}) {
		t.Errorf("Backlog = %+v, %v, want the refused one among those that wait", left, err)
	}
	later(t, db, order{"b", 0})
	if n := count(t, db, "SELECT count(*) FROM waybill_delayed WHERE refused = 1"); n != 1 {
		t.Errorf("%d are refused, want 1", n)
	}
}

// One claim promotes one batch, bounded by rows and by bytes (C2).
func TestClaimPromotesOneBatch(t *testing.T) {
	db := open(t, waysqlite.Config{Normal: true})
	later(t, db, orders("k", 2100)...)
	for _, left := range []int{1100, 100, 0} {
		settle(t, claim(t, db, outbox.Keyed), nil)
		if n := count(t, db, "SELECT count(*) FROM waybill_delayed"); n != left {
			t.Errorf("%d are left, want %d", n, left)
		}
	}
	big := order{strings.Repeat("k", 200), 0}
	later(t, db, big, big, big, big)
	if _, err := db.SQL().Exec("UPDATE waybill_delayed SET body = zeroblob(3000000)"); err != nil {
		t.Fatal(err)
	}
	for _, left := range []int{2, 0} {
		settle(t, claim(t, db, outbox.Keyed), nil)
		if n := count(t, db, "SELECT count(*) FROM waybill_delayed"); n != left {
			t.Errorf("%d large ones are left, want %d", n, left)
		}
	}
}
