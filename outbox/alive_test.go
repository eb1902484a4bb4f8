package outbox_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// hanging is a store whose claims hang, whatever their context says.
type hanging struct {
	outbox.Store
	free chan struct{}
}

func (h hanging) Claim(ctx context.Context, transport string, part outbox.Part, limit outbox.ClaimLimit) (outbox.Claim, error) {
	<-h.free
	return h.Store.Claim(ctx, transport, part, limit)
}

func TestRelayWhoseBatchHangsIsNotAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.cfg.PublishDeadline = 5 * time.Second
		free := make(chan struct{})
		relay, err := outbox.NewRelay(hanging{y.db, free}, y.broker, y.cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- relay.Run(ctx) }()
		for _, c := range []struct {
			after, within time.Duration
			alive         bool
		}{{19 * time.Second, time.Second, true}, {2 * time.Second, time.Second, false}, {0, time.Minute, true}, {time.Minute, time.Minute, false}} {
			time.Sleep(c.after)
			if err := relay.Alive(c.within); (err == nil) != c.alive {
				t.Errorf("after %v more, Alive(%v) = %v", c.after, c.within, err)
			}
		}
		close(free)
		time.Sleep(time.Hour)
		if err := relay.Alive(time.Second); err != nil {
			t.Errorf("Alive of an idle relay = %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
