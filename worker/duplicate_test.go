package worker_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
)

// A second delivery of a dead letter that succeeds closes it, because redelivered messages
// pass through the retry queue. A copy of the message, as a relay publishes after a lost
// confirm, does not pass through it, and leaves the dead letter to a replay.
func TestDuplicateClosesTheDeadLetterIfItIsRedelivered(t *testing.T) {
	for what, redelivered := range map[string]bool{"redelivery": true, "copy": false} {
		synctest.Test(t, func(t *testing.T) {
			p := stored(t)
			mended := false
			p.handle(func(context.Context, job) error {
				if !mended {
					return waybill.Unrecoverable(errDeclined)
				}
				return nil
			})
			p.send(job{"", 1})
			stop := p.start(&again{p.queue, redelivered})
			time.Sleep(time.Second)
			first := p.db.DeadLetters("failed")[0]
			mended = true
			noError(t, p.queue.Send(t.Context(), first.Record))
			time.Sleep(time.Second)
			p.wantDone("1")
			if n := len(p.db.DeadLetters("failed")); (n == 0) != redelivered {
				t.Errorf("%s: %d dead letters", what, n)
			}
			p.db.Replay("failed")
			time.Sleep(time.Second)
			noError(t, stop())
			p.wantAttempts()
		})
	}
}

// again marks all messages as redelivered, or none.
type again struct {
	waybill.Receiver
	redelivered bool
}

func (a *again) Receive(ctx context.Context, n int) ([]*waybill.Delivery, error) {
	ds, err := a.Receiver.Receive(ctx, n)
	for _, d := range ds {
		d.Redelivered = a.redelivered
	}
	return ds, err
}
