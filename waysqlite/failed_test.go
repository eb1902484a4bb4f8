package waysqlite_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

var all = outbox.Max{Rows: 1 << 20, Bytes: 1 << 30}

// refuse has the head of a claim of the outbox refused for the last time.
func refuse(t *testing.T, db *waysqlite.DB, policy outbox.Policy) {
	t.Helper()
	c, err := db.Claim(t.Context(), outbox.DefaultTransport, all)
	if err != nil || len(c.Rows()) == 0 {
		t.Fatalf("Claim = %v, %v", c, err)
	}
	if err := c.Settle(t.Context(), nil, []outbox.Failure{{Row: c.Rows()[0], Err: errRefused, Policy: policy, Exhausted: true}}); err != nil {
		t.Fatal(err)
	}
}

func letGo(t *testing.T, db *waysqlite.DB) {
	t.Helper()
	if n, err := db.Release(t.Context(), admin.BlockedQuery{}); err != nil || n != 1 {
		t.Fatalf("Release = %d, %v, want 1", n, err)
	}
}

// Workers of one relay share the right to relay the file. Whatever they claim at
// once, a parked row is handed out once, and what comes later of its key after it.
func TestReleaseIsInOneClaimAtATime(t *testing.T) {
	db := open(t, waysqlite.Config{Normal: true})
	const parked, rows = 60, 90
	for i := range parked {
		dispatch(t, db, outbox.Config{}, order{"k", i})
	}
	refuse(t, db, outbox.Park)
	for i := parked; i < rows; i++ {
		dispatch(t, db, outbox.Config{}, order{"k", i})
	}
	letGo(t, db)
	var mu sync.Mutex
	var got []order
	var workers sync.WaitGroup
	for worker := range 6 {
		claim := []func(context.Context, string, outbox.Max) (outbox.Claim, error){db.Claim, db.ClaimReleasing}[worker%2]
		workers.Go(func() {
			ctx := t.Context()
			for start := time.Now(); time.Since(start) < 20*time.Second; {
				c, err := claim(ctx, outbox.DefaultTransport, outbox.Max{Rows: 2, Bytes: 1 << 20})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, row := range c.Rows() {
					var o order
					_ = waybill.JSON{}.Decode(row.Record.Body, &o)
					got = append(got, o)
				}
				done := len(got) >= rows
				mu.Unlock()
				if err := c.Settle(ctx, c.Rows(), nil); err != nil {
					t.Error(err)
				}
				if done {
					return
				}
			}
		})
	}
	workers.Wait()
	if perKey(t, got); len(got) != rows {
		t.Errorf("%d rows were handed out, want each of %d once", len(got), rows)
	}
}

// ordered publishes what follows in a key before what is ahead is confirmed.
type ordered struct{ *recorder }

func (ordered) Stream(*waybill.Record) string { return "" }

func pipelined() outbox.RelayConfig {
	return outbox.RelayConfig{
		Pipelined: true, MaxAttempts: 3, Retry: waybill.Backoff{Delay: time.Hour, MaxDelay: time.Hour, Jitter: -1},
		OnExhausted: func(string) outbox.Policy { return outbox.Park },
	}
}

// Where several messages of a key are on their way together, several are refused
// together. Those behind the head count for nothing: the key is parked from there.
func TestKeyOfSeveralRefusedMessagesIsParked(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"k", 0}, order{"k", 1}, order{"k", 2})
	sink := &recorder{refuse: func(*waybill.Record) error { return errRefused }}
	for range 3 {
		drain(t, db, ordered{sink}, pipelined())
		letGo(t, db)
	}
	found, err := db.Failed(t.Context(), admin.FailedQuery{State: admin.Parked})
	if err != nil || len(found) != 3 || found[0].Failures != 3 {
		t.Errorf("parked: %+v, %v, want all three", found, err)
	}
	sink.refuse = nil
	drain(t, db, ordered{sink}, pipelined())
	if diff := cmp.Diff([]order{{"k", 0}, {"k", 1}, {"k", 2}}, sink.got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

// What was published together with a refused head does not make it a new one.
func TestHeadThatIsPassedIsParked(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"k", 0})
	var head waybill.MessageID
	sink := &recorder{refuse: func(rec *waybill.Record) error {
		if head.IsZero() {
			head = rec.ID
		}
		if rec.ID == head {
			return errRefused
		}
		return nil
	}}
	for i := range 3 {
		dispatch(t, db, outbox.Config{}, order{"k", i + 1})
		drain(t, db, ordered{sink}, pipelined())
		letGo(t, db)
	}
	found, err := db.Failed(t.Context(), admin.FailedQuery{State: admin.Parked})
	if err != nil || len(found) != 1 || found[0].ID != head || found[0].Failures != 3 {
		t.Errorf("parked: %+v, %v, want the head after 3 attempts", found, err)
	}
}

// A message whose result did not come, and that is ahead of the refused one of its
// key, is parked ahead of it.
func TestKeyIsParkedFromItsFirstMessage(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"k", 0}, order{"k", 1}, order{"k", 2}, order{"k", 3})
	c, err := db.Claim(t.Context(), outbox.DefaultTransport, all)
	if err != nil || len(c.Rows()) != 4 {
		t.Fatalf("Claim = %v, %v", c, err)
	}
	failed := outbox.Failure{Row: c.Rows()[2], Err: errRefused, Policy: outbox.Park, Exhausted: true}
	if err := c.Settle(t.Context(), c.Rows()[:1], []outbox.Failure{failed}); err != nil {
		t.Fatal(err)
	}
	found, err := db.Failed(t.Context(), admin.FailedQuery{Key: "k"})
	if err != nil || len(found) != 3 {
		t.Fatalf("Failed = %+v, %v, want all that are not published", found, err)
	}
	for i, m := range found {
		if m.ID != c.Rows()[1+i].Record.ID {
			t.Errorf("parked as number %d of the key: %+v", i, m)
		}
	}
}

// A released key that is refused waits for its time, whatever else is released.
func TestReleasedKeyThatIsRefusedWaits(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"a", 0}, order{"b", 0})
	refuse(t, db, outbox.Park)
	refuse(t, db, outbox.Park)
	if n, err := db.Release(t.Context(), admin.BlockedQuery{}); err != nil || n != 2 {
		t.Fatalf("Release = %d, %v", n, err)
	}
	c, err := db.ClaimReleasing(t.Context(), outbox.DefaultTransport, all)
	if err != nil || len(c.Rows()) != 2 {
		t.Fatalf("ClaimReleasing = %v, %v", c, err)
	}
	if err := c.Settle(t.Context(), nil, []outbox.Failure{{Row: c.Rows()[0], Err: errRefused, RetryIn: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	again, err := db.ClaimReleasing(t.Context(), outbox.DefaultTransport, all)
	if err != nil || len(again.Rows()) != 1 || again.Rows()[0].ID != c.Rows()[1].ID {
		t.Errorf("ClaimReleasing = %+v, %v, want the other key", again.Rows(), err)
	}
}

// No index finds the rows of a key, so the look for them ends somewhere. What is
// beyond waits, and keeps its order.
func TestRowsFarBehindAParkedHeadWaitInTheOutbox(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"k", 0}, order{"k", 1})
	if _, err := db.SQL().Exec("UPDATE sqlite_sequence SET seq = 1000000 WHERE name = 'waybill_outbox'"); err != nil {
		t.Fatal(err)
	}
	dispatch(t, db, outbox.Config{}, order{"k", 2}, order{"far", 0})
	c, err := db.Claim(t.Context(), outbox.DefaultTransport, all)
	if err != nil || len(c.Rows()) != 4 {
		t.Fatalf("Claim = %v, %v", c, err)
	}
	var failed []outbox.Failure
	for _, i := range []int{0, 3} {
		failed = append(failed, outbox.Failure{Row: c.Rows()[i], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	}
	if err := c.Settle(t.Context(), nil, failed); err != nil {
		t.Fatal(err)
	}
	found, err := db.Blocked(t.Context(), "", 0)
	if err != nil || len(found) != 2 {
		t.Fatalf("Blocked = %+v, %v", found, err)
	}
	for _, b := range found {
		if want := map[string][2]int{"k": {2, 1}, "far": {1, 0}}[b.Key]; b.State != admin.Parked || [2]int{b.Parked, b.Waiting} != want {
			t.Errorf("of key %s %d are parked and %d wait, want %v: %+v", b.Key, b.Parked, b.Waiting, want, b)
		}
	}
	if n, err := db.Release(t.Context(), admin.BlockedQuery{}); err != nil || n != 2 {
		t.Fatalf("Release = %d, %v", n, err)
	}
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{Batch: 1}) // a drain looks until nothing is released
	if n := perKey(t, sink.got); n["k"] != 3 || n["far"] != 1 {
		t.Errorf("published %v", sink.got)
	}
}

// An operator's process dispatches nothing itself, and knows no transport.
func TestRetryFailedNeedsNoOutbox(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{To: "events"}, order{"k", 0})
	c, err := db.Claim(t.Context(), "events", all)
	if err != nil || len(c.Rows()) != 1 {
		t.Fatalf("Claim = %v, %v", c, err)
	}
	if err := c.Settle(t.Context(), nil, []outbox.Failure{{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Skip, Exhausted: true}}); err != nil {
		t.Fatal(err)
	}
	operator := openAt(t, db.Path(), waysqlite.Config{})
	if n, err := operator.RetryFailed(t.Context(), 1); err != nil || n != 1 {
		t.Errorf("RetryFailed = %d, %v", n, err)
	}
	rows, err := db.Outbox(t.Context(), admin.OutboxQuery{Transport: "events"})
	if err != nil || len(rows) != 1 || rows[0].Key != "k" {
		t.Errorf("in the outbox: %+v, %v", rows, err)
	}
}

// What cannot be read can be given up, and looked at.
func TestUnreadableRowIsSkipped(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"k", 0})
	if _, err := db.SQL().Exec("UPDATE waybill_outbox SET headers = '{oops'"); err != nil {
		t.Fatal(err)
	}
	refuse(t, db, outbox.Skip)
	found, err := db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(found) != 1 {
		t.Fatalf("Failed = %+v, %v", found, err)
	}
	content, err := db.FailedContent(t.Context(), found[0].Number)
	if err != nil {
		t.Fatal(err)
	}
	var headers string
	if err := json.Unmarshal(content.Headers, &headers); err != nil || headers != "{oops" {
		t.Errorf("its headers are shown as %s, %v", content.Headers, err)
	}
	if n, err := db.RetryFailed(t.Context(), found[0].Number); err == nil || n != 0 {
		t.Errorf("RetryFailed = %d, %v, want an error", n, err)
	}
	if again, err := db.Failed(t.Context(), admin.FailedQuery{}); err != nil || !cmp.Equal(again, found) {
		t.Errorf("after the retry that failed: %+v, %v, want %+v", again, err, found)
	}
}

// The version before knows nothing of the failure store: its relays claim nothing
// of a parked key, and its release is refused.
func TestVersionBeforeLeavesParkedKeysAlone(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"k", 0}, order{"k", 1})
	refuse(t, db, outbox.Park)
	for _, state := range []string{admin.Parked, admin.Releasing} {
		if found, err := db.Blocked(t.Context(), "", 0); err != nil || len(found) != 1 || found[0].State != state {
			t.Fatalf("Blocked = %+v, %v, want one that is %s", found, err, state)
		}
		if _, err := db.SQL().Exec("UPDATE waybill_outbox_blocked SET next_attempt_at = 0"); err == nil || !strings.Contains(err.Error(), "CHECK") {
			t.Errorf("a %s key was let go: %v", state, err)
		}
		if n := count(t, db, "SELECT count(*) FROM waybill_outbox_blocked WHERE next_attempt_at > unixepoch('9999-12-30') * 1000000"); n != 1 {
			t.Errorf("a %s key will be due", state)
		}
		letGo(t, db)
	}
}

func TestSchemaDownKeepsTheFailureStore(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"k", 0}, order{"k", 1})
	refuse(t, db, outbox.Skip)
	refused := func(what string) {
		t.Helper()
		if _, err := db.SchemaDown(t.Context()); !errors.Is(err, admin.ErrSchema) {
			t.Errorf("with %s: SchemaDown = %v", what, err)
		}
	}
	refused("a skipped message")
	if n, err := db.RemoveFailed(t.Context(), 1); err != nil || n != 1 {
		t.Fatalf("RemoveFailed = %d, %v", n, err)
	}
	refuse(t, db, outbox.Park)
	refused("a parked one")
	if n, err := db.RemoveFailed(t.Context(), 2); err != nil || n != 1 {
		t.Fatalf("RemoveFailed = %d, %v", n, err)
	}
	refused("a parked key")
	letGo(t, db)
	refused("a releasing key")
	if _, err := db.ClaimReleasing(t.Context(), outbox.DefaultTransport, all); err != nil {
		t.Fatal(err)
	}
	before := schema(t, db)
	down, err := db.SchemaDown(t.Context())
	if err != nil || down.Version != down.Wanted-1 || !slices.Equal(down.Pending, []string{down.Undone}) {
		t.Fatalf("SchemaDown = %+v, %v", down, err)
	}
	if up, err := db.SchemaUp(t.Context()); err != nil || up.Err() != nil {
		t.Fatalf("SchemaUp = %+v, %v", up, err)
	}
	if diff := cmp.Diff(before, schema(t, db)); diff != "" {
		t.Errorf("the tables after down and up (-before +after):\n%s", diff)
	}
}

// schema is what the tables are made of.
func schema(t *testing.T, db *waysqlite.DB) (statements []string) {
	t.Helper()
	rows, err := db.SQL().Query("SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		statements = append(statements, strings.Join(strings.Fields(s), " "))
	}
	return statements
}
