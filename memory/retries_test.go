package memory_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/worker"
)

// failing returns a function that moves rec to dead letters after an attempt of a number.
func failing(t *testing.T, q worker.RetryQueue, rec *waybill.Record) func(n int, to string) {
	return func(n int, to string) {
		t.Helper()
		rec.Headers = map[string]string{"failed": fmt.Sprint(n)}
		attempt := &worker.Attempt{At: time.Unix(int64(n), 0), Failure: worker.Failure{Error: fmt.Sprint("refused ", n)}}
		check(t, q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}, Attempt: attempt, DeadLetters: to}))
	}
}

func TestMessageThatFailsAgainKeepsItsDeadLetter(t *testing.T) {
	db := memory.NewDB()
	q, err := db.RetryQueue("t")
	check(t, err)
	fail := failing(t, q, record(t, "k", "x"))
	fail(1, "lost")
	fail(1, "lost") // the first answer was lost
	if got := db.DeadLetters("lost"); len(got) != 1 || len(got[0].Attempts) != 1 {
		t.Errorf("after a failure that was reported twice: %+v, want one attempt", got)
	}
	fail(2, "elsewhere")
	got := db.DeadLetters("elsewhere")
	if len(got) != 1 || len(got[0].Attempts) != 2 || got[0].Record.Headers["failed"] != "2" || len(db.DeadLetters("lost")) > 0 {
		t.Errorf("after another failure: %+v, want one entry with the headers of the last", got)
	}
}

func TestReplayOfARetriedMessageAddsNone(t *testing.T) {
	db := memory.NewDB()
	q, err := db.RetryQueue("t")
	check(t, err)
	rec := record(t, "k", "x")
	failing(t, q, rec)(1, "lost")
	check(t, q.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}})) // the transport delivers it again
	for i, want := range []int{1, 0} {
		if got := db.Replay("lost"); got != want {
			t.Errorf("replay %d has %d messages, want %d", i, got, want)
		}
	}
	ds, err := q.Receive(t.Context(), 10)
	if err != nil || len(ds) != 1 {
		t.Fatalf("Receive = %d messages, %v, want one", len(ds), err)
	}
	check(t, q.Retry(t.Context(), ds[0], 0))
	if got := db.DeadLetters("lost"); len(got) != 1 || len(got[0].Attempts) != 2 {
		t.Errorf("after a retry: %+v, want one entry with two attempts", got)
	}
	ds, err = q.Receive(t.Context(), 10)
	check(t, err)
	check(t, q.Ack(t.Context(), ds...))
	if got := db.DeadLetters("lost"); len(got) > 0 || db.Waiting("t") > 0 {
		t.Errorf("dead letters %+v and %d waiting messages after the success, want none", got, db.Waiting("t"))
	}
}
