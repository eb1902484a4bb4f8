package waytest

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// A mortalOperation is one operation of a worker, or of an operator.
type mortalOperation[TX any] struct {
	name string
	// prepare brings about the state before it, and returns nil if the database has no such
	// operation.
	prepare func(k *killed[TX]) (act func() error)
}

// soon is a delay of a retry, for which no case waits long.
const soon = time.Millisecond

func mortalOperations[TX any]() []mortalOperation[TX] {
	failed := func(n int) worker.Move { return worker.Move{Attempt: attempt(n), Delay: soon} }
	parked := worker.Move{Attempt: attempt(3), Parked: true}
	buried := worker.Move{Attempt: attempt(4), DeadLetters: "lost"}
	return []mortalOperation[TX]{
		{"failing", adding[TX](failed(1), worker.Move{}, failed(2))},
		{"parking", adding[TX](parked, worker.Move{})},
		{"giving up", adding[TX](buried, worker.Move{}, buried)},
		{"retrying", moving[TX](failed(1), worker.Move{}, failed(2))},
		{"parking a retry", moving[TX](parked, worker.Move{})},
		{"giving up a retry", moving[TX](buried)},
		{"giving up several", moving[TX](buried, worker.Move{}, buried)},
		{"replaying", func(k *killed[TX]) func() error {
			return k.change(k.process.letters().RetryFailed)
		}},
		{"replaying as new", func(k *killed[TX]) func() error {
			operator, ok := k.process.Store.(admin.DeadLetters)
			if !ok {
				return nil
			}
			return k.change(operator.RetryFailedAsNew)
		}},
		{"failing again", func(k *killed[TX]) func() error {
			k.buryAndReplay()
			return k.moveOf(1, buried)
		}},
		{"closing", func(k *killed[TX]) func() error {
			k.buryAndReplay()
			k.sent = append(k.sent, add(k.t, k.q, order{"x", 2})...)
			k.take(1)
			return func() error { return k.q.Ack(context.Background(), k.held...) }
		}},
		{"releasing", func(k *killed[TX]) func() error {
			try(k.t, "Add", k.add(parked, worker.Move{})())
			k.moves = nil
			return func() error {
				_, err := k.process.Store.(admin.Retries).ReleaseRetries(context.Background(), k.transport, "x")
				return err
			}
		}},
		{"skipping", func(k *killed[TX]) func() error {
			try(k.t, "Add", k.add(parked, worker.Move{})())
			k.moves = nil
			return func() error {
				_, err := k.process.Store.(admin.Retries).SkipParked(context.Background(), k.transport, "x", "lost")
				return err
			}
		}},
	}
}

// letters is the operator's side of a process.
func (p Process[TX]) letters() DeadLetters { return any(p.Store).(DeadLetters) }

// adding is an operation that adds x0, x1 and a message without a key.
func adding[TX any](moves ...worker.Move) func(k *killed[TX]) func() error {
	return func(k *killed[TX]) func() error { return k.add(moves...) }
}

func (k *killed[TX]) add(moves ...worker.Move) func() error {
	for i, m := range moves {
		m.Delivery = arrived(k.t, []order{{"x", 0}, {"x", 1}, {"", 0}}[i])
		k.sent, k.moves = append(k.sent, m.Delivery), append(k.moves, m)
	}
	return func() error { return k.q.Add(context.Background(), k.moves...) }
}

// moving is an operation that settles retries of these messages.
func moving[TX any](moves ...worker.Move) func(k *killed[TX]) func() error {
	return func(k *killed[TX]) func() error {
		k.sent = add(k.t, k.q, order{"x", 0}, order{"x", 1}, order{"", 0})
		return k.moveOf(len(moves), moves...)
	}
}

// moveOf receives n messages, and returns the operation that moves them.
func (k *killed[TX]) moveOf(n int, moves ...worker.Move) func() error {
	k.take(n)
	var all []worker.Move
	for i, m := range moves {
		m.Delivery = k.held[i]
		all = append(all, m)
	}
	return func() error { return k.q.Move(context.Background(), all...) }
}

// take receives at least n messages, several of a key if it is more than one.
func (k *killed[TX]) take(n int) {
	limit := 1
	if n > 1 {
		limit = many
	}
	for len(k.held) < n {
		k.held = append(k.held, receive(k.t, k.q, limit)...)
	}
}

// bury makes dead letters of x0 and a message without a key, before x1.
func (k *killed[TX]) bury() {
	k.t.Helper()
	buried := worker.Move{Attempt: attempt(1), DeadLetters: "lost"}
	try(k.t, "Add", k.add(buried, worker.Move{}, buried)())
	k.moves = nil
}

// buryAndReplay leaves the replayed ones in the retry queue.
func (k *killed[TX]) buryAndReplay() {
	k.t.Helper()
	k.bury()
	try(k.t, "Ack", k.q.Ack(k.t.Context(), receive(k.t, k.q, 1)...)) // of x1
	k.replay()
}

// change is an operator's change of these dead letters.
func (k *killed[TX]) change(by func(context.Context, ...int64) (int, error)) func() error {
	k.bury()
	numbers := k.numbers()
	return func() error {
		_, err := by(context.Background(), numbers...)
		return err
	}
}
