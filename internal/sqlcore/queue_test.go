package sqlcore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
)

// trickle is a queue that has a row at any time, and notes the times of its claims.
type trickle struct {
	QueueStore
	QueueClaim
	claims []time.Time
	looks  int
	silent bool // the next look is not answered
}

func (*trickle) Ready(context.Context) error { return nil }

func (q *trickle) Any(ctx context.Context, _ string) (bool, error) {
	q.looks++
	if q.silent {
		q.silent = false
		<-ctx.Done()
		return false, ctx.Err()
	}
	return true, nil
}

func (q *trickle) Claim(ctx context.Context, _ Consumer, fn func(context.Context, QueueClaim) error) error {
	q.claims = append(q.claims, time.Now())
	return fn(ctx, q)
}

func (*trickle) Read(context.Context, int, int) ([]QueueRow, error) { return []QueueRow{{ID: 1}}, nil }

func (*trickle) Lease(context.Context, []int64) ([]*waybill.Delivery, error) {
	return []*waybill.Delivery{{Record: &waybill.Record{}, Tag: DeliveredRow{ID: 1}}}, nil
}

// Messages that come one by one are claimed together: a claim that has found fewer rows than it may
// is not repeated at once, and one that may be behind a backlog is.
func TestClaimsOfFewRowsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for limit, apart := range map[int]time.Duration{2: claimEvery, 1: 0} {
			table := &trickle{}
			q := &receiver{self: Consumer{Queue: "q", Holder: uuid.Must(uuid.NewV4()), Lease: time.Minute}, store: table, wakes: &Wakes{}}
			for range 3 {
				if ds, err := q.Receive(t.Context(), limit); err != nil || len(ds) != 1 {
					t.Fatalf("received %d messages, %v", len(ds), err)
				}
			}
			if got := table.claims[2].Sub(table.claims[0]); got != 2*apart {
				t.Errorf("three claims of up to %d rows took %v, want %v", limit, got, 2*apart)
			}
			time.Sleep(time.Second)
			begun := time.Now()
			if _, err := q.Receive(t.Context(), limit); err != nil || time.Since(begun) > 0 {
				t.Errorf("a claim after a pause waits for %v, %v", time.Since(begun), err)
			}
			q.short.Store(time.Now().Add(time.Hour).UnixNano())
			q.looked.Store(q.short.Load())
			begun, looks := time.Now(), table.looks
			if _, err := q.Receive(t.Context(), limit); err != nil || time.Since(begun) > claimEvery || table.looks == looks {
				t.Errorf("after the clock went back a claim waits for %v and looks %d times, %v", time.Since(begun), table.looks-looks, err)
			}
		}
	})
}

// A server that has vanished answers nothing until TCP gives up, a quarter of an hour later.
func TestLookWithoutAnswerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &receiver{self: Consumer{Queue: "q", Holder: uuid.Must(uuid.NewV4()), Lease: time.Minute}, store: &trickle{silent: true}, wakes: &Wakes{}}
		begun := time.Now()
		if _, err := q.Receive(t.Context(), 1); err == nil || time.Since(begun) > lookTimeout+time.Second {
			t.Errorf("Receive = %v after %v", err, time.Since(begun))
		}
		if ds, err := q.Receive(t.Context(), 1); err != nil || len(ds) != 1 {
			t.Errorf("received %d messages, %v", len(ds), err)
		}
	})
}
