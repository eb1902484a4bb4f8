package sqlcore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
)

// trickle is a queue that has rows at any time, and notes the times of its claims.
type trickle struct {
	QueueStore
	QueueClaim
	claims []time.Time
	looks  int
	rows   int
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

func (q *trickle) Read(context.Context, int, int) (rows []QueueRow, err error) {
	for i := range q.rows {
		rows = append(rows, QueueRow{ID: int64(i)})
	}
	return rows, nil
}

func (*trickle) Lease(_ context.Context, ids []int64) (ds []*waybill.Delivery, err error) {
	for _, id := range ids {
		ds = append(ds, &waybill.Delivery{Record: &waybill.Record{}, Tag: DeliveredRow{ID: id}})
	}
	return ds, nil
}

// Messages that come one by one are claimed together: a claim that has found fewer rows than it may
// is not repeated at once, the later the more it has found, and one that may be behind a backlog is.
func TestClaimsOfFewRowsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			rows, limit int
			apart       time.Duration
		}{{1, 1, 0}, {40, 40, 0}, {1, 40, 2 * time.Millisecond}, {5, 40, 5 * time.Millisecond}, {39, 40, 10 * time.Millisecond}} {
			table := &trickle{rows: tt.rows}
			q := &receiver{self: Consumer{Queue: "q", Holder: uuid.Must(uuid.NewV4()), Lease: time.Minute}, store: table, wakes: &Wakes{}}
			for range 3 {
				if ds, err := q.Receive(t.Context(), tt.limit); err != nil || len(ds) != tt.rows {
					t.Fatalf("received %d messages, %v", len(ds), err)
				}
			}
			if got := table.claims[2].Sub(table.claims[0]); got != 2*tt.apart {
				t.Errorf("three claims of %d rows, of up to %d, took %v, want %v", tt.rows, tt.limit, got, 2*tt.apart)
			}
			time.Sleep(time.Second)
			begun := time.Now()
			if _, err := q.Receive(t.Context(), tt.limit); err != nil || time.Since(begun) > 0 {
				t.Errorf("a claim after a pause waits for %v, %v", time.Since(begun), err)
			}
			q.next.Store(time.Now().Add(time.Hour).UnixNano())
			q.looked.Store(q.next.Load())
			begun, looks := time.Now(), table.looks
			if _, err := q.Receive(t.Context(), tt.limit); err != nil || time.Since(begun) > 10*time.Millisecond || table.looks == looks {
				t.Errorf("after the clock went back a claim waits for %v and looks %d times, %v", time.Since(begun), table.looks-looks, err)
			}
		}
	})
}

// A server that has vanished answers nothing until TCP gives up, a quarter of an hour later.
func TestLookWithoutAnswerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &receiver{self: Consumer{Queue: "q", Holder: uuid.Must(uuid.NewV4()), Lease: time.Minute}, store: &trickle{rows: 1, silent: true}, wakes: &Wakes{}}
		begun := time.Now()
		if _, err := q.Receive(t.Context(), 1); err == nil || time.Since(begun) > lookTimeout+time.Second {
			t.Errorf("Receive = %v after %v", err, time.Since(begun))
		}
		if ds, err := q.Receive(t.Context(), 1); err != nil || len(ds) != 1 {
			t.Errorf("received %d messages, %v", len(ds), err)
		}
	})
}
