package waymysql_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/faultproxy"
	"github.com/waybill-go/waybill/internal/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// give has the first row of each key in a claim follow a policy.
func give(t testing.TB, c outbox.Claim, policy outbox.Policy) {
	t.Helper()
	var failed []outbox.Failure
	seen := map[string]bool{}
	for _, row := range c.Rows() {
		if !seen[row.Record.Key] {
			seen[row.Record.Key] = true
			failed = append(failed, outbox.Failure{Row: row, Err: errRefused, Policy: policy, Exhausted: true})
		}
	}
	settle(t, c, nil, failed...)
}

func claimReleasing(t testing.TB, db *waymysql.DB) outbox.Claim {
	t.Helper()
	c, err := db.ClaimReleasing(t.Context(), outbox.DefaultTransport, manyRows)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func release(t testing.TB, db *waymysql.DB) {
	t.Helper()
	if _, err := db.Release(t.Context(), admin.BlockedQuery{}); err != nil {
		t.Fatal(err)
	}
}

// parked says what the failure store has: "k1 k2".
func parked(t testing.TB, db *waymysql.DB) string {
	t.Helper()
	found, err := db.Failed(t.Context(), admin.FailedQuery{State: admin.Parked})
	if err != nil {
		t.Fatal(err)
	}
	words := make([]string, len(found))
	for i, m := range found {
		content, err := db.FailedContent(t.Context(), m.Number)
		if err != nil {
			t.Fatal(err)
		}
		o := bodyOf(&waybill.Record{Body: content.Body})
		words[i] = fmt.Sprint(o.Key, o.Seq)
	}
	return strings.Join(words, " ")
}

// What a claim has published of a key goes before the rest of it is parked.
func TestWhatIsPublishedIsNotParked(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0}, order{"k", 1}, order{"k", 2})
	c := claim(t, db, manyRows)
	settle(t, c, c.Rows()[:1], outbox.Failure{Row: c.Rows()[1], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	if got := parked(t, db); got != "k1 k2" {
		t.Errorf("parked are %q, want k1 k2", got)
	}
}

// Of a long key the first rows are parked; the rest waits in the outbox, and comes
// after them.
func TestLongKeyIsParkedInPart(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	const rest, key = 30, "k0"
	put(t, db, order{"other", 0}) // which makes the transport
	for range drained(t, db) {
	}
	exec(t, db, fmt.Sprintf(`INSERT INTO waybill_outbox (lane, bucket, message_id, message_name, partition_key, body)
		SELECT l.id, %d, UNHEX(MD5(s.seq)), 'order.placed', '%s', CONCAT('{"key":"%[2]s","seq":', s.seq, '}') FROM waybill_outbox_lane AS l JOIN seq_0_to_%d AS s ORDER BY s.seq`,
		outbox.Bucket(key, 64), key, outbox.MaxParked+rest-1))
	give(t, claim(t, db, outbox.Max{Rows: 10, Bytes: 1 << 20}), outbox.Park)
	found, err := db.Blocked(t.Context(), "", 0)
	if err != nil || len(found) != 1 || found[0].Parked != outbox.MaxParked || found[0].Waiting != rest {
		t.Fatalf("Blocked = %+v, %v", found, err)
	}
	release(t, db)
	got := drained(t, db)
	if n := perKey(t, got); n[key] != outbox.MaxParked+rest {
		t.Errorf("%d came, want %d", n[key], outbox.MaxParked+rest)
	}
}

// However many released keys wait for a route, in one bucket or in many, others
// are released, and a drain does not wait for those.
func TestKeysBehindARouteHoldUpNoRelease(t *testing.T) {
	t.Parallel()
	for name, held := range map[string][]string{"one bucket": sameBucket(40), "many buckets": otherBuckets(40)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := newDB(t, waymysql.Config{})
			taken := map[int]bool{}
			for _, key := range held {
				put(t, db, waybill.RawMessage{Name: "big", Key: key, Body: []byte("{}")})
				taken[outbox.Bucket(key, 64)] = true
			}
			free := "z0" // which comes last, from their bucket or from none of theirs
			for i := 1; taken[outbox.Bucket(free, 64)] != (len(taken) == 1); i++ {
				free = fmt.Sprint("z", i)
			}
			put(t, db, order{free, 0})
			all := outbox.Max{Rows: 64, Bytes: 1 << 20}
			for c := claim(t, db, all); len(c.Rows()) > 0; c = claim(t, db, all) {
				give(t, c, outbox.Park)
			}
			put(t, db, waybill.RawMessage{Name: "big", Key: "behind", Body: []byte("{}")})
			release(t, db)
			c := claim(t, db, all)
			settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Route: true, RetryIn: time.Hour})
			c = claimReleasing(t, db)
			if len(c.Rows()) != 1 || c.Rows()[0].Record.Key != free {
				t.Errorf("%d rows are released, want the one of %s", len(c.Rows()), free)
			}
			settle(t, c, c.Rows())
			if left, err := db.Left(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Left{Pending: 1, Blocked: 1}) {
				t.Errorf("Left = %+v, %v", left, err)
			}
		})
	}
}

// A parked row may be skipped when it is refused once more: then what follows it
// goes on at once.
func TestRowSkippedInAReleaseLetsTheRestGoOn(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0}, order{"k", 1}, order{"k", 2})
	give(t, claim(t, db, manyRows), outbox.Park)
	release(t, db)
	give(t, claimReleasing(t, db), outbox.Skip)
	if got := parked(t, db); got != "k1 k2" {
		t.Errorf("parked are %q, want k1 k2", got)
	}
	c := claimReleasing(t, db)
	if len(c.Rows()) != 2 || c.Rows()[0].Failures != 0 {
		t.Errorf("released are %+v, want two that have not failed", c.Rows())
	}
	settle(t, c, nil)
}

// A row that is too large for a claim is not passed over.
func TestReleaseEndsAtARowThatIsTooLarge(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0}, waybill.RawMessage{Name: "big", Key: "k", ContentType: "x/y", Body: []byte(strings.Repeat("x", 30<<10))}, order{"k", 2})
	give(t, claim(t, db, manyRows), outbox.Park)
	release(t, db)
	const room = 120 << 10 // rows of the usual size, as many as there are
	c := claimReleasing(t, db)
	settle(t, c, nil)
	c, err := db.ClaimReleasing(t.Context(), outbox.DefaultTransport, outbox.Max{Rows: 10, Bytes: room})
	if err != nil || len(c.Rows()) != 3 {
		t.Fatalf("%d rows, %v, want all: this proves nothing", len(c.Rows()), err)
	}
	settle(t, c, nil)
	exec(t, db, "UPDATE waybill_failed SET body = REPEAT('x', 200000) WHERE message_name = 'big'")
	c, err = db.ClaimReleasing(t.Context(), outbox.DefaultTransport, outbox.Max{Rows: 10, Bytes: room})
	if err != nil || len(c.Rows()) != 1 {
		t.Errorf("%d rows, %v, want the first", len(c.Rows()), err)
	}
	settle(t, c, nil)
}

// A route that works again frees the keys that wait for its sake, but none that is
// parked.
func TestRouteThatWorksAgainFreesNoParkedKey(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	give(t, claim(t, db, manyRows), outbox.Park)
	put(t, db, order{"k", 1}, order{"l", 0})
	c := claim(t, db, manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Route: true})
	c = claim(t, db, manyRows)
	if n := len(c.Rows()); n != 1 || c.Rows()[0].RouteFailures != 1 {
		t.Fatalf("%d rows, want the one of the route: %+v", n, c.Rows())
	}
	settle(t, c, c.Rows())
	if got := look(t, db); got != "" {
		t.Errorf("%q can be claimed, which is behind what is parked", got)
	}
}

// A process that has dispatched nothing knows where messages go.
func TestAnotherProcessRetriesWhatFailed(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	give(t, claim(t, db, manyRows), outbox.Skip)
	failed, err := db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(failed) != 1 {
		t.Fatalf("Failed = %+v, %v", failed, err)
	}
	if n, err := open(t, dsn, waymysql.Config{}).RetryFailed(t.Context(), failed[0].Number); n != 1 || err != nil {
		t.Errorf("RetryFailed = %d, %v, want 1", n, err)
	}
	if got := drained(t, db); len(got) != 1 {
		t.Errorf("%v came, want one message", got)
	}
}

// A release that the server would forget, were it killed now, is not followed.
func TestReleaseThatAKilledServerForgetsIsNotFollowed(t *testing.T) {
	t.Parallel()
	server := testserver.StartHoldingMariaDB(t, map[string]string{"innodb_stats_auto_recalc": "OFF"})
	db := open(t, driverDSN(t, server.URL()), waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is first opened while the log is held waits for it
		put(t, db, order{"k", 0})
		give(t, claim(t, db, manyRows), outbox.Park)
		release(t, db)
		c := claimReleasing(t, db)
		settle(t, c, c.Rows())
	}
	put(t, db, order{"k", 1})
	give(t, claim(t, db, manyRows), outbox.Park)

	server.Hold()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() { _, _ = db.Release(ctx, admin.BlockedQuery{}) }()
	for count(t, db, "SELECT COUNT(*) FROM waybill_outbox_blocked WHERE state = 'releasing'") == 0 {
		if ctx.Err() != nil {
			t.Fatal("the commit does not show while the log is held: this proves nothing")
		}
		time.Sleep(time.Millisecond)
	}
	claiming, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	c, err := db.ClaimReleasing(claiming, outbox.DefaultTransport, manyRows)
	server.Kill()
	server.Start()
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_outbox_blocked WHERE state = 'parked'"); n != 1 {
		t.Fatalf("%d keys are parked after the restart: this proves nothing", n)
	}
	if err == nil && len(c.Rows()) > 0 {
		t.Error("a release that is forgotten was followed")
	}
}

// A command of the version before must not let a parked key go: it does not see
// what comes first.
func TestOlderCommandsLeaveParkedKeysAlone(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	give(t, claim(t, db, manyRows), outbox.Park)
	for _, state := range []string{admin.Parked, admin.Releasing} {
		if _, err := db.Pool().ExecContext(t.Context(), "UPDATE waybill_outbox_blocked SET next_attempt_at = UTC_TIMESTAMP(6)"); err == nil {
			t.Errorf("a key that is %s can be let go", state)
		}
		release(t, db)
	}
}

func TestSchemaDownLosesNothingThatFailed(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	refused := func(what string) {
		t.Helper()
		if _, err := db.SchemaDown(t.Context()); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "failed list") {
			t.Errorf("%s: SchemaDown = %v, want a refusal", what, err)
		}
	}
	put(t, db, order{"k", 0}, order{"l", 0})
	c := claim(t, db, manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	refused("with a parked message")
	parked, err := db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(parked) != 1 {
		t.Fatalf("Failed = %+v, %v", parked, err)
	}
	if n, err := db.RemoveFailed(t.Context(), parked[0].Number); n != 1 || err != nil {
		t.Fatalf("RemoveFailed = %d, %v", n, err)
	}
	refused("with a parked key")
	release(t, db)
	claimReleasing(t, db)

	// What a relay gives up while the command is at work.
	other := pool(t, dsn)
	tx := begin(t, other)
	if _, err := tx.Exec("INSERT INTO waybill_failed (transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, last_error) VALUES ('default', 'skipped', '0123456789abcdef', 'x', '', '{}', '', UTC_TIMESTAMP(6), 1, '')"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := db.SchemaDown(context.Background())
		done <- err
	}()
	await(t, "the command waits", 20*time.Second, func() bool {
		return count(t, db, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'ALTER TABLE%waybill_failed%'") > 0
	})
	commit(t, tx)
	if err := <-done; !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "failed list") {
		t.Errorf("SchemaDown beside a relay = %v, want a refusal", err)
	}
	give(t, claim(t, db, manyRows), outbox.Skip) // the tables are whole
	failed, err := db.Failed(t.Context(), admin.FailedQuery{State: admin.Skipped})
	if err != nil || len(failed) != 2 {
		t.Fatalf("Failed = %+v, %v", failed, err)
	}
	if n, err := db.RemoveFailed(t.Context(), failed[0].Number, failed[1].Number); n != 2 || err != nil {
		t.Fatalf("RemoveFailed = %d, %v", n, err)
	}
	if status, err := db.SchemaDown(t.Context()); err != nil || status.Version != 3 {
		t.Errorf("SchemaDown = %+v, %v", status, err)
	}
}

// Wherever a schema down is cut, the next one goes on, and a schema up refuses. A
// fifth of the places are tried, others each time.
func TestSchemaDownGoesOnWhereItWasCut(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	schema := databaseOf(t, dsn)
	if _, err := db.SchemaDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	older := objects(t, db.Pool(), schema, "waybill_")
	cut, network := through(t, dsn)
	places := 0
	for at := int(time.Now().UnixNano() % 5); ; at += 5 {
		if _, err := db.SchemaUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		seen, cutting, lost := 0, false, at%2 == 1
		network.OnBytes(func(dir faultproxy.Direction, b []byte) faultproxy.Action {
			changes := dir == faultproxy.ToServer && len(b) > 5 && b[4] == 3 && regexp.MustCompile(`^\s*(ALTER|DROP|REPLACE|DELETE)`).Match(b[5:])
			if cutting {
				return faultproxy.CutBefore
			}
			if changes {
				seen++
			}
			if cutting = seen > at/2; cutting && !lost {
				return faultproxy.CutBefore
			}
			return faultproxy.Pass
		})
		_, err := cut.SchemaDown(t.Context())
		network.OnBytes(nil)
		if err == nil {
			break // there are no more places
		}
		places++
		status, err := db.SchemaStatus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if status.Version == 4 {
			begun := count(t, db, "SELECT COUNT(*) FROM waybill_meta WHERE name = 'schema_step'") > 0
			if _, err := db.SchemaUp(t.Context()); begun != errors.Is(err, admin.ErrSchema) {
				t.Errorf("cut %d: SchemaUp = %v, the first step is noted: %v", at, err, begun)
			}
			if _, err := db.SchemaDown(t.Context()); err != nil {
				t.Fatalf("cut %d: SchemaDown once more = %v", at, err)
			}
		}
		if diff := cmp.Diff(older, objects(t, db.Pool(), schema, "waybill_")); diff != "" {
			t.Fatalf("cut %d (-want +got):\n%s", at, diff)
		}
	}
	if places < 3 {
		t.Errorf("%d places were tried, want more than there are statements in a fifth", places)
	}
}
