package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// failingCases are cases of relay: how many of the keys fail.
var failingCases = []struct {
	name string
	keys int
}{{"one-failing-key", 1}, {"hundred-failing-keys", 100}}

const (
	failingKeys  = 1000
	parkedKeys   = 10_000 // beside them, on both sides, unless opt.Rows is less
	failingPace  = 10 * time.Millisecond
	failingBurst = 20   // messages each, so that a key has two a second
	failingRatio = 1.25 // of the 99th percentiles, at the most
)

// failing measures the latency of keys while the broker refuses every message of so
// many others, against the same while it takes them.
func failing(ctx context.Context, name string, refused int, p backend, b *broker, opt Options) (_ Result, err error) {
	db, ok := p.store().(admin.Database)
	if !ok {
		return Result{}, fmt.Errorf("%T is no admin.Database", p.store())
	}
	kinds := p.transactions()
	opt.Keys = failingKeys
	l := latency{backend: p, broker: b, opt: opt, one: kinds[0], every: failingPace, burst: failingBurst, apart: refused}
	parked := &backlog{p, opt, outboxTable, 1}
	l.load.prepare = func(ctx context.Context) error {
		if opt.Rows < parkedKeys {
			return nil // a quick look
		}
		return parked.refuse(ctx, parkedKeys, true)
	}
	refuse, closeRefusal, err := b.refusal(ctx, refused)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, closeRefusal()) }()
	side := func(refuses bool) func(ctx context.Context) (quantiles, error) {
		return func(ctx context.Context) (quantiles, error) {
			if err := refuse(refuses); err != nil {
				return quantiles{}, err
			}
			began := time.Now()
			q, err := l.relayed(ctx, p.store())
			if err != nil {
				return q, err
			}
			blocked, err := db.Blocked(ctx, outbox.DefaultTransport, 0)
			blocked = slices.DeleteFunc(blocked, func(k admin.BlockedKey) bool {
				return k.State == admin.Parked || k.FirstFailedAt.Before(began) // of an earlier turn, whose rows are gone
			})
			if err == nil && (len(blocked) > 0) != refuses {
				err = fmt.Errorf("%d keys are blocked where the broker refuses %d: %t", len(blocked), refused, refuses)
			}
			if err != nil {
				return q, err
			}
			_, err = db.Release(ctx, admin.BlockedQuery{}) // its rows are removed before the next turn
			return q, err
		}
	}
	res := Result{Case: "relay, " + name, Database: p.database(), Keys: opt.Keys, Workers: opt.Workers, Ordering: "strict", Rounds: opt.Rounds,
		MaxRatio: failingRatio, Buckets: opt.buckets()}
	res, err = compare(ctx, opt, res, side(true), side(false))
	if err == nil {
		opt.say("%s: no other key waited longer than %.0f ms for its next message, %.0f ms without it", res.Case, res.Latency.Pause, res.YardstickLatency.Pause)
	}
	return res, err
}

// refusal has the broker refuse the messages of the first keys, while it is on: they are
// routed to a full queue, too. While it is off they are routed to a queue with room in its
// place, because the broker compares each message with the binding of each key.
func (b *broker) refusal(ctx context.Context, refused int) (set func(on bool) error, end func() error, err error) {
	keys, full, room := b.name+"_keys", b.name+"_full", b.name+"_room"
	end = func() error {
		return errors.Join(second(b.ch.QueueDelete(full, false, false, false)), second(b.ch.QueueDelete(room, false, false, false)),
			b.ch.ExchangeDelete(keys, false, false))
	}
	err = errors.Join(
		b.ch.ExchangeDeclare(keys, "headers", true, false, false, false, nil),
		b.ch.ExchangeBind(keys, "#", b.name, false, nil),
		second(b.ch.QueueDeclare(full, true, false, false, false, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})),
		second(b.ch.QueueDeclare(room, true, false, false, false, nil)),
		b.ch.PublishWithContext(ctx, "", full, true, false, amqp.Publishing{}))
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return func(on bool) error {
		from, to := full, room
		if on {
			from, to = room, full
		}
		for i := range refused {
			of := amqp.Table{"x-match": "all-with-x", "x-partition-key": keyOf(i, failingKeys)}
			if err := b.ch.QueueUnbind(from, "", keys, of); err != nil {
				return err
			}
			if err := b.ch.QueueBind(to, "", keys, false, of); err != nil {
				return err
			}
		}
		return second(b.ch.QueuePurge(room, false))
	}, end, nil
}
