package waysqlite_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

// deadLetter adds a dead letter of transport t, and returns it with the retry queue.
func deadLetter(t *testing.T, db *waysqlite.DB) (admin.FailedMessage, worker.RetryQueue) {
	t.Helper()
	q, err := db.RetryQueue("t")
	if err != nil {
		t.Fatal(err)
	}
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	rec := &waybill.Record{ID: id, Name: "order.placed", Key: "k", Body: []byte("{}")}
	if err := q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}, DeadLetters: "lost"}); err != nil {
		t.Fatal(err)
	}
	found, err := db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(found) != 1 {
		t.Fatalf("Failed = %+v, %v", found, err)
	}
	return found[0], q
}

func TestReplayWhoseRowWasDeletedByHandIsRepeated(t *testing.T) {
	db := open(t, waysqlite.Config{})
	m, q := deadLetter(t, db)
	for replay := range 2 {
		if n, err := db.RetryFailed(t.Context(), m.Number); err != nil || n != 1 {
			t.Fatalf("RetryFailed = %d, %v, in replay %d", n, err, replay)
		}
		if n, err := db.RetryFailed(t.Context(), m.Number); err != nil || n != 0 {
			t.Fatalf("RetryFailed = %d, %v, of a message in the retry queue", n, err)
		}
		if replay == 0 {
			if _, err := db.SQL().Exec("DELETE FROM waybill_retry"); err != nil {
				t.Fatal(err)
			}
		}
	}
	ds, err := q.Receive(t.Context(), 10)
	if err != nil || len(ds) != 1 || ds[0].Record.ID != m.ID {
		t.Errorf("Receive = %v, %v", ds, err)
	}
}

// The outbox's transaction and that of the entries of workers are one.
func TestReplayOfAllOrNone(t *testing.T) {
	db := open(t, waysqlite.Config{})
	m, _ := deadLetter(t, db)
	if _, err := db.SQL().Exec("CREATE TRIGGER no BEFORE INSERT ON waybill_retry BEGIN SELECT RAISE(ABORT, 'no'); END"); err != nil {
		t.Fatal(err)
	}
	if n, err := db.RetryFailed(t.Context(), m.Number); err == nil || n != 0 {
		t.Errorf("RetryFailed = %d, %v, want an error", n, err)
	}
	if found, err := db.Failed(t.Context(), admin.FailedQuery{}); err != nil || len(found) != 1 || found[0].State != admin.Failed {
		t.Errorf("Failed = %+v, %v, want the entry as it was", found, err)
	}
}

// The count of replays that failed, which is repeated while a replay runs, takes time in
// proportion to the messages.
func TestManyReplaysThatFailedAreCountedInTime(t *testing.T) {
	few, many := countReplays(t, 300), countReplays(t, 3000)
	t.Logf("%v, and %v of ten times as many", few, many)
	if many > 40*few { // one by one it is a hundred times
		t.Errorf("it took %v, and %v of ten times as many messages", few, many)
	}
}

// countReplays returns the time for n replays of each source, the least of three.
func countReplays(t *testing.T, n int) time.Duration {
	t.Helper()
	db := open(t, waysqlite.Config{Normal: true})
	for _, of := range []string{"'worker', 'jobs', 'failed'", "'outbox', 'events', 'skipped'"} {
		if _, err := db.SQL().Exec(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
			INSERT INTO waybill_failed (source, transport, state, message_id, message_name, partition_key, headers, body, created_at, failed_at, failures, last_error)
			SELECT `+of+`, randomblob(16), 'a', '', '{}', x'', 1, 1, 1, '' FROM n`, n); err != nil {
			t.Fatal(err)
		}
	}
	found, err := db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(found) != 2*n {
		t.Fatalf("Failed = %d, %v", len(found), err)
	}
	if _, err := db.SQL().Exec("UPDATE waybill_failed SET state = 'removed' WHERE id % 2 = 0"); err != nil {
		t.Fatal(err)
	}
	least := time.Hour
	for range 3 {
		start := time.Now()
		again, err := db.FailedAgain(t.Context(), found...)
		least = min(least, time.Since(start))
		if err != nil || again != n {
			t.Errorf("FailedAgain = %d, %v, want %d", again, err, n)
		}
	}
	return least
}
