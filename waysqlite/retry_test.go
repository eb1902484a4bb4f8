package waysqlite_test

import (
	"testing"

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
