package e2e

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

// A queue that is full most of the time refuses message after message of one
// key: each waits its turn, and those behind it wait with it.
func TestFullQueueThatRejectsKeepsTheOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		const n, narrow = 200, "narrow"
		s := on.stack(t)
		s.must(s.ch.QueueUnbind(everyone, "#", transport, nil))
		_, err := s.ch.QueueDeclare(narrow, true, false, false, false, amqp.Table{"x-max-length": 3, "x-overflow": "reject-publish"})
		s.must(err)
		s.must(s.ch.QueueBind(narrow, "#", transport, false, nil))
		s.dispatch([]string{"k"}, n)
		events := &tally{}
		s.relay(s.openWith(s.database, 0), s.publisher(wayamqp.Config{Heartbeat: patientHeartbeat}), outbox.RelayConfig{Transport: transport, Observer: events})
		s.eventually(patience, "the queue is full", func() bool { return events.refused.Load() > 0 })
		w := s.watchSlowly(narrow, 20, 20*time.Millisecond)
		took := w.await(n, patience)
		v := w.judge(0)
		t.Logf("%v after %v, with %d refusals", v, took.Round(time.Millisecond), events.refused.Load())
		s.eventually(patience, "nothing is blocked or left", func() bool { return len(s.blocked()) == 0 && s.left() == 0 })
	})
}
