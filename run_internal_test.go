package waybill

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
)

// A goroutine that a handler leaves behind queues follow-ups while a middleware fails. The run
// ends all the same, or later follow-ups would wait for ever in place of being sent at once.
func TestGoroutineKeepsNoFailedRunOpen(t *testing.T) {
	for name, finish := range map[string]func(*run, error) error{
		"received":   func(r *run, err error) error { return r.finish(t.Context(), err) },
		"dispatched": func(r *run, err error) error { return r.finishWhole(t.Context(), err) },
	} {
		for range 50 {
			r := &run{}
			var ended atomic.Bool
			begun, waits := make(chan bool), make(chan bool)
			go func() {
				waiting := r.wait("h", nil)
				close(begun)
				for last := false; waiting && !last; {
					last = ended.Load()
					waiting = r.wait("h", func(context.Context) error { return nil })
				}
				waits <- waiting
			}()
			<-begun
			if err := finish(r, errFailed); !errors.Is(err, errFailed) {
				t.Fatal(err)
			}
			ended.Store(true)
			if <-waits {
				t.Fatalf("%s: a follow-up of a run that is over waits", name)
			}
		}
	}
}

var errFailed = errors.New("failed")
