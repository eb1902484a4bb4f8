package waypg_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

// lettersOf adds dead letters of a worker, and returns them with the existing ones.
func lettersOf(t testing.TB, db *waypg.DB, added byte, all int) []admin.FailedMessage {
	t.Helper()
	q, err := db.RetryQueue("jobs")
	if err != nil {
		t.Fatal(err)
	}
	for i := range added {
		rec := &waybill.Record{ID: waybill.MessageID{15: 1 + i}, Name: "job", Body: []byte("{}")}
		if err := q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}, DeadLetters: "failed"}); err != nil {
			t.Fatal(err)
		}
	}
	letters, err := db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(letters) != all {
		t.Fatalf("Failed = %+v, %v, want %d", letters, err, all)
	}
	return letters
}

// A replay of dead letters of a relay and of a worker is one transaction: when it cannot
// commit, all of them stay where they are.
func TestReplayThatCannotCommitMovesNothing(t *testing.T) {
	t.Parallel()
	db := openAt(t, testserver.Postgres(t), waypg.Config{})
	put(t, db, outbox.Config{}, order{"k", 0})
	c := claim(t, db, "default", manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	letters := lettersOf(t, db, 1, 2)
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

// The statement of the second operator has begun before the first one's commit, and sees the
// entry by its lock as it is since, and the retry queue as it was.
func TestOperatorsAtOnceReplayAMessageOnce(t *testing.T) {
	t.Parallel()
	db := openAt(t, testserver.Postgres(t), waypg.Config{})
	letters := lettersOf(t, db, 1, 1)
	holder, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context())
	if _, err := holder.Exec(t.Context(), "SELECT FROM waybill_failed FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	const operators = 2
	replayed := make(chan int, operators)
	for range operators {
		go func() {
			n, err := db.RetryFailed(t.Context(), letters[0].Number)
			if err != nil {
				t.Error(err)
			}
			replayed <- n
		}()
	}
	await(t, "both wait for the entry", 60*time.Second, func() bool {
		return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == operators
	})
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := <-replayed + <-replayed; n != 1 {
		t.Errorf("the operators were told of %d messages, want 1", n)
	}
	if n := count(t, db, "SELECT sum(messages) FROM waybill_audit"); n != 1 {
		t.Errorf("the audit has %d messages, want 1", n)
	}
}

// The row of the first entry is behind that of the second in its table.
func TestRemovalLocksInTheOrderOfReplays(t *testing.T) {
	t.Parallel()
	db := openAt(t, testserver.Postgres(t), waypg.Config{})
	letters := lettersOf(t, db, 2, 2)
	first, second := letters[0].Number, letters[1].Number
	exec(t, db, "UPDATE waybill_failed SET last_error = 'moved' WHERE id = $1", first)
	holder, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context())
	if _, err := holder.Exec(t.Context(), "SELECT FROM waybill_failed WHERE id = $1 FOR UPDATE", first); err != nil {
		t.Fatal(err)
	}
	removed := make(chan int, 1)
	go func() {
		n, err := db.RemoveFailed(t.Context(), second, first)
		if err != nil {
			t.Error(err)
		}
		removed <- n
	}()
	await(t, "the removal waits for the first entry", 60*time.Second, func() bool {
		return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	})
	if _, err := holder.Exec(t.Context(), "SELECT FROM waybill_failed WHERE id = $1 FOR UPDATE NOWAIT", second); err != nil {
		t.Errorf("the second entry, while the removal waits for the first: %v", err)
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := <-removed; n != 2 {
		t.Errorf("RemoveFailed = %d, want 2", n)
	}
}
