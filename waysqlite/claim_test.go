package waysqlite_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// The parts of a relay's three loops are disjoint, and no row is in two open
// claims.
func TestPartsAreDisjoint(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	put(t, out, order{"a", 0}, order{"b", 0}, order{"", 0}, order{"", 1}, order{"a", 1})
	keyed, unkeyed := want(t, db, outbox.Keyed, "a0 b0 a1"), want(t, db, outbox.Unkeyed, "0 1")
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed, outbox.Retries} {
		want(t, db, part, "") // all are claimed
	}
	settle(t, keyed, nil, outbox.Failure{Row: keyed.Rows()[0], Err: errRefused})
	settle(t, unkeyed, nil, outbox.Failure{Row: unkeyed.Rows()[1], Err: errRefused})
	keyed, unkeyed = want(t, db, outbox.Keyed, "b0"), want(t, db, outbox.Unkeyed, "0")
	retries := want(t, db, outbox.Retries, "a0 1")
	want(t, db, outbox.Retries, "")
	for _, row := range retries.Rows() {
		if row.Failures != 1 {
			t.Errorf("%+v, want one failure", row)
		}
	}
	settle(t, retries, retries.Rows())
	settle(t, keyed, keyed.Rows())
	settle(t, unkeyed, unkeyed.Rows())
	keyed = want(t, db, outbox.Keyed, "a1")
	settle(t, keyed, keyed.Rows())
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{}) {
		t.Errorf("Backlog = %+v, %v", left, err)
	}
}

// A suspect is retried without a counted failure.
func TestSuspectIsNotCounted(t *testing.T) {
	db := open(t, waysqlite.Config{})
	put(t, newOutbox(t, db, outbox.Config{}), order{"a", 0})
	c := want(t, db, outbox.Keyed, "a0")
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Suspect: true})
	for failures := range 3 {
		c = want(t, db, outbox.Retries, "a0")
		if got := c.Rows()[0].Failures; got != failures {
			t.Errorf("%d failures, want %d", got, failures)
		}
		settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused})
	}
}

// A clock that went back must not prolong a retry's wait (D7), and a delay longer
// than longestDelay is not mistaken for it.
func TestRetryIsDueAfterTheClockWentBack(t *testing.T) {
	db := open(t, waysqlite.Config{})
	put(t, newOutbox(t, db, outbox.Config{}), order{"a", 0})
	c := want(t, db, outbox.Keyed, "a0")
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, RetryIn: 24 * time.Hour})
	want(t, db, outbox.Retries, "")
	if _, err := db.SQL().Exec("UPDATE waybill_outbox_blocked SET next_attempt_at = next_attempt_at + 60000000"); err != nil {
		t.Fatal(err)
	}
	want(t, db, outbox.Retries, "a0")
}

// A key with a long backlog shares the claims with other keys (D3).
func TestHotKeyLeavesRoomForOthers(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	put(t, out, orders("hot", 500)...)
	put(t, out, order{"b", 0}, order{"b", 1})
	cold, got := 0, []order{}
	for n := 0; len(got) < 503; n++ {
		if n == 10 {
			put(t, out, order{"c", 0})
		}
		c, err := db.Claim(t.Context(), outbox.DefaultTransport, outbox.Keyed, outbox.ClaimLimit{Rows: 10, Bytes: 1 << 20})
		if err != nil || len(c.Rows()) == 0 {
			t.Fatalf("claim %d: %v, %v", n, c.Rows(), err)
		}
		for _, row := range c.Rows() {
			if row.Record.Key != "hot" && cold < 3 {
				if cold++; n > 13 {
					t.Errorf("%s came with claim %d", row.Record.Key, n)
				}
			}
			var seq int
			_, _ = fmt.Sscanf(names([]outbox.ClaimedRow{row})[len(row.Record.Key):], "%d", &seq)
			got = append(got, order{row.Record.Key, seq})
		}
		settle(t, c, c.Rows())
	}
	perKey(t, got)
}

// Idle claims read neither entries that are not due nor waiting rows (C5, C7).
func TestIdleLookReadsNothingThatWaits(t *testing.T) {
	db := open(t, waysqlite.Config{Normal: true})
	newOutbox(t, db, outbox.Config{})
	const n = 10_000
	parts := []outbox.Part{outbox.Keyed, outbox.Unkeyed, outbox.Retries}
	look := func(part outbox.Part) time.Duration {
		want(t, db, part, "") // the first claim may read past waiting rows
		least := time.Hour
		for range 50 {
			start := time.Now()
			want(t, db, part, "")
			least = min(least, time.Since(start))
		}
		return least
	}
	empty := map[outbox.Part]time.Duration{}
	for _, part := range parts {
		empty[part] = look(part)
	}
	for _, statement := range []string{
		`WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x < 30000)
		 INSERT INTO waybill_outbox (transport, bucket, held, message_id, message_name, partition_key, body)
		 SELECT 1, iif(x % 3 = 0, 1024, 0), x % 3 = 1, zeroblob(16), 'm', iif(x % 3 = 1, '', 'k' || x), '' FROM n`,
		`INSERT INTO waybill_outbox_blocked
		 SELECT transport, partition_key, id, message_id, message_name, 1, 0, unixepoch() * 1000000 + 1000000000, '', iif(bucket = 1024, 'parked', 'retrying'), 'park' FROM waybill_outbox`,
	} {
		if _, err := db.SQL().Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range parts {
		if took := look(part); took > 5*empty[part]+2*time.Millisecond {
			t.Errorf("an idle look at %v takes %v with %d rows that wait, and %v with none", part, took, 3*n, empty[part])
		}
	}
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{Pending: 3 * n, Blocked: 3 * n}) {
		t.Errorf("Backlog = %+v, %v", left, err)
	}
}
