package waymysql_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/worker"
)

// skipped adds a dead letter of a relay.
func skipped(t *testing.T, db *waymysql.DB, o order) {
	t.Helper()
	put(t, db, o)
	c := claim(t, db, manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Skip, Exhausted: true})
}

// deadLetter adds a dead letter of a worker of transport jobs, and returns its retry queue.
func deadLetter(t *testing.T, db *waymysql.DB, rec *waybill.Record) worker.RetryQueue {
	t.Helper()
	q, err := db.RetryQueue("jobs")
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}, DeadLetters: "failed"}); err != nil {
		t.Fatal(err)
	}
	return q
}

func failed(t *testing.T, db *waymysql.DB, q admin.FailedQuery, want int) (numbers []int64) {
	t.Helper()
	found, err := db.Failed(t.Context(), q)
	if err != nil || len(found) != want {
		t.Fatalf("Failed(%+v) = %+v, %v, want %d", q, found, err, want)
	}
	for _, m := range found {
		numbers = append(numbers, m.Number)
	}
	return numbers
}

// A replay of dead letters of a relay and of a worker is one transaction with its row of the
// audit: rows of the outbox are written at its end, and when they cannot be, all stays as
// it was.
func TestReplayThatCannotCommitMovesNothing(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	skipped(t, db, order{"k", 0})
	deadLetter(t, db, record(t, order{"j", 0}))
	numbers := failed(t, db, admin.FailedQuery{}, 2)
	exec(t, db, "CREATE TRIGGER refuse BEFORE INSERT ON waybill_outbox FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the disk is full'")
	for what, replay := range map[string]func() (int, error){
		"RetryFailed":      func() (int, error) { return db.RetryFailed(t.Context(), numbers...) },
		"RetryFailedAsNew": func() (int, error) { return db.RetryFailedAsNew(t.Context(), numbers...) },
	} {
		if n, err := replay(); err == nil || n != 0 {
			t.Fatalf("%s = %d, %v, want the error of the commit", what, n, err)
		}
		for query, want := range map[string]int{
			"SELECT COUNT(*) FROM waybill_retry": 0, "SELECT COUNT(*) FROM waybill_audit": 0,
			"SELECT COUNT(*) FROM waybill_failed WHERE state IN ('failed', 'skipped')": 2,
		} {
			if n := count(t, db, query); n != want {
				t.Errorf("%s after a %s that failed: %d, want %d", query, what, n, want)
			}
		}
	}
	exec(t, db, "DROP TRIGGER refuse")
	if n, err := db.RetryFailed(t.Context(), numbers...); err != nil || n != 2 {
		t.Errorf("RetryFailed = %d, %v, want 2", n, err)
	}
	if n := count(t, db, "SELECT SUM(messages) FROM waybill_audit"); n != 2 {
		t.Errorf("%d messages in the audit, want 2", n)
	}
}

func TestReplayWhoseRowWasDeletedByHandIsRepeated(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	rec := record(t, order{"k", 0})
	q := deadLetter(t, db, rec)
	number := failed(t, db, admin.FailedQuery{}, 1)[0]
	for replay := range 2 {
		for _, want := range []int{1, 0} { // the second finds it in the retry queue
			if n, err := db.RetryFailed(t.Context(), number); err != nil || n != want {
				t.Fatalf("RetryFailed = %d, %v, want %d, in replay %d", n, err, want, replay)
			}
		}
		if replay == 0 {
			exec(t, db, "DELETE FROM waybill_retry")
		}
	}
	if ds, err := q.Receive(t.Context(), 10); err != nil || len(ds) != 1 || ds[0].Record.ID != rec.ID {
		t.Errorf("Receive = %v, %v", ds, err)
	}
}

// An operator's edit to the same body is no change, and no error.
func TestEditToTheSameBodyChangesNothing(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	rec := record(t, order{"k", 0})
	deadLetter(t, db, rec)
	if err := db.EditFailed(t.Context(), failed(t, db, admin.FailedQuery{}, 1)[0], rec.Body, rec.Body); err != nil {
		t.Error(err)
	}
	if entries, err := db.Audit(t.Context(), 0, 0); err != nil || len(entries) != 0 {
		t.Errorf("Audit = %+v, %v, want none", entries, err)
	}
}

// A group has all of its names and handlers, however many there are: lists that the server
// aggregates are cut at 1024 bytes.
func TestGroupsOfManyNamesAreComplete(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	const n = 300
	exec(t, db, `INSERT INTO waybill_failed (source, transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, last_error, handler, fingerprint)
		SELECT 'worker', 'jobs', 'failed', UNHEX(LEFT(SHA2(seq, 256), 32)), CONCAT('name-', seq % 150), '', '{}', '', UTC_TIMESTAMP(6), 1, CONCAT('error ', seq), CONCAT('handler-', seq), 'f' FROM `+numbers(n)+` AS s`)
	for _, text := range []string{"refused", "refused", "lost"} { // of relays, which have no fingerprints
		exec(t, db, `INSERT INTO waybill_failed (source, transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, last_error)
			SELECT 'outbox', 'events', 'skipped', UNHEX(LEFT(SHA2(UUID(), 256), 32)), 'a', '', '{}', '', UTC_TIMESTAMP(6), 1, '`+text+`'`)
	}
	groups, err := db.FailedGroups(t.Context(), admin.FailedQuery{})
	if err != nil || len(groups) != 3 {
		t.Fatalf("FailedGroups = %+v, %v, want three", groups, err)
	}
	g := groups[0]
	if g.Messages != n || len(g.Names) != 150 || len(g.Handlers) != n || !slices.IsSorted(g.Names) || !slices.IsSorted(g.Handlers) || g.Error != fmt.Sprint("error ", n) {
		t.Errorf("the largest group: %+v", g)
	}
	var got []string
	for _, g := range groups[1:] {
		got = append(got, fmt.Sprintf("%d %q %s %v %v", g.Messages, g.Fingerprint, g.Error, g.Names, g.Handlers))
	}
	if diff := cmp.Diff([]string{`2 "" refused [a] []`, `1 "" lost [a] []`}, got); diff != "" {
		t.Errorf("groups of relays (-want +got):\n%s", diff)
	}
}

// The count of replays that failed, which is repeated while a replay runs, takes time in
// proportion to the messages.
func TestManyReplaysThatFailedAreCountedInTime(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	const n = 10_000 // of each source
	for _, of := range []string{"'worker', 'jobs', 'failed'", "'outbox', 'events', 'skipped'"} {
		exec(t, db, `INSERT INTO waybill_failed (source, transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, last_error)
			SELECT `+of+`, UNHEX(LEFT(SHA2(seq, 256), 32)), 'a', '', '{}', '', UTC_TIMESTAMP(6), 1, '' FROM `+numbers(n)+` AS s`)
	}
	found, err := db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(found) != 2*n {
		t.Fatalf("Failed = %d, %v", len(found), err)
	}
	exec(t, db, "UPDATE waybill_failed SET state = 'removed' WHERE id % 2 = 0")
	left := count(t, db, "SELECT COUNT(*) FROM waybill_failed WHERE state <> 'removed'")
	start := time.Now()
	again, err := db.FailedAgain(t.Context(), found...)
	took := time.Since(start)
	t.Logf("%d of %d in %v", again, len(found), took)
	if err != nil || again != left {
		t.Errorf("FailedAgain = %d, %v, want %d", again, err, left)
	}
	if took > 10*time.Second { // one by one it reads 10^8 rows
		t.Errorf("it took %v", took)
	}
}
