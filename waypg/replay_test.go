package waypg_test

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

// A replay of dead letters of a relay and of a worker is one transaction: when it cannot
// commit, all of them stay where they are.
func TestReplayThatCannotCommitMovesNothing(t *testing.T) {
	t.Parallel()
	db := openAt(t, testserver.Postgres(t), waypg.Config{})
	put(t, db, outbox.Config{}, order{"k", 0})
	c := claim(t, db, "default", manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	q, err := db.RetryQueue("jobs")
	if err != nil {
		t.Fatal(err)
	}
	rec := &waybill.Record{ID: waybill.MessageID{15: 1}, Name: "job", Body: []byte("{}")}
	if err := q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}, DeadLetters: "failed"}); err != nil {
		t.Fatal(err)
	}
	letters, err := db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(letters) != 2 {
		t.Fatalf("Failed = %+v, %v, want two", letters, err)
	}
	exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'the disk is full'; END $$`)
	exec(t, db, `CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON waybill_outbox DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if n, err := db.RetryFailed(t.Context(), letters[0].Number, letters[1].Number); err == nil || n != 0 {
		t.Fatalf("RetryFailed = %d, %v, want the error of the commit", n, err)
	}
	if n := count(t, db, "SELECT count(*) FROM waybill_retry"); n != 0 {
		t.Errorf("%d messages in the retry queue after a replay that failed, want none", n)
	}
	if n := count(t, db, "SELECT count(*) FROM waybill_failed WHERE state IN ('failed', 'skipped')"); n != 2 {
		t.Errorf("%d dead letters after a replay that failed, want 2", n)
	}
	exec(t, db, `DROP TRIGGER refuse ON waybill_outbox`)
	if n, err := db.RetryFailed(t.Context(), letters[0].Number, letters[1].Number); err != nil || n != 2 {
		t.Errorf("RetryFailed = %d, %v, want 2", n, err)
	}
}
