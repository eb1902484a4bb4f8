package outbox

import "context"

// turns lets the workers of a relay publish side by side, or one of them alone.
// They may share a connection, and what the broker cuts it for must not be
// blamed on what another worker has in flight.
type turns struct {
	places chan struct{} // one is held by each worker that publishes, all by one that does so alone
	alone  chan struct{} // held while taking all places, so that two do not take half each
}

func newTurns(workers int) *turns {
	return &turns{make(chan struct{}, workers), make(chan struct{}, 1)}
}

// take waits for a turn, which the caller gives back. It returns nil when ctx
// ends before.
func (t *turns) take(ctx context.Context, alone bool) (giveBack func()) {
	held, want := 0, 1
	giveBack = func() {
		for range held {
			<-t.places
		}
	}
	if alone {
		want = cap(t.places)
		select {
		case t.alone <- struct{}{}:
			defer func() { <-t.alone }()
		case <-ctx.Done():
			return nil
		}
	}
	for held < want {
		select {
		case t.places <- struct{}{}:
			held++
		case <-ctx.Done():
			giveBack()
			return nil
		}
	}
	return giveBack
}
