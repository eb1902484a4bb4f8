package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
)

// connections are the numbers of connections that dispatch is measured with.
var connections = []int{1, 8, 32}

// messages are the cases by the number of messages in a transaction, each message
// with a different key.
var messages = []struct {
	name string
	many int
}{{"one", 1}, {"two", 2}, {"five", 5}}

// Dispatch measures transactions with a business row and one or several messages,
// against inserts of the same columns without a lock and against inserts into
// bare's table; and while a relay drains, against both yardsticks.
func Dispatch(ctx context.Context, opt Options) (_ []Result, err error) {
	p, err := newBackend(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	kinds := p.transactions()
	var results []Result
	for _, c := range messages {
		if !opt.Wants(c.name) {
			continue
		}
		many := c.many
		for _, kind := range kinds {
			for _, n := range connections {
				res := Result{Case: "dispatch, " + kind.name, Database: p.database(), Keys: opt.Keys, Workers: n, Ordering: "strict", Target: p.target(many), Buckets: opt.buckets()}
				if many > 1 {
					res.Case += fmt.Sprintf(", %d messages", many)
				}
				d := dispatcher{p, opt, many, n}
				if res, err = race(ctx, opt, res, d.side(kind.waybill), d.side(kind.plain), d.side(d.bare)); err != nil {
					return nil, err
				}
				results = append(results, res)
			}
		}
	}
	if opt.Wants("beside-relay") {
		res, err := besideRelay(ctx, p, opt)
		if err != nil {
			return nil, err
		}
		results = append(results, res)
	}
	return results, nil
}

// sold is the message: 200 bytes as JSON.
type sold struct {
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
	Note     string `json:"note"`
}

func (sold) MessageName() string    { return "order.sold" }
func (m sold) PartitionKey() string { return m.Customer }

// encode returns the body of the message, and a new id.
func (m sold) encode() (id waybill.MessageID, body []byte, err error) {
	if body, err = json.Marshal(m); err != nil {
		return id, nil, err
	}
	id, err = waybill.NewMessageID()
	return id, body, err
}

// large is a message of about 1 MB, with the name of loaded rows.
type large struct {
	Customer, Note string
}

func (large) MessageName() string    { return "order.placed" }
func (m large) PartitionKey() string { return m.Customer }

const note = "                                                                                                                                                 "

// A dispatcher runs transactions of so many messages on so many connections.
type dispatcher struct {
	backend
	opt                   Options
	messages, connections int
}

// side runs one kind of transaction.
func (d dispatcher) side(one func(ctx context.Context, ms []sold) error) side {
	return func(ctx context.Context) (int, time.Duration, error) {
		if err := d.clear(ctx); err != nil {
			return 0, 0, err
		}
		return d.run(ctx, one)
	}
}

// bare inserts into the table of the yardstick bare.
func (d dispatcher) bare(ctx context.Context, ms []sold) error { return d.insert(ctx, bare, ms) }

// run has all connections commit transactions for a slice.
func (d dispatcher) run(ctx context.Context, one func(ctx context.Context, ms []sold) error) (int, time.Duration, error) {
	var done atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, d.connections)
	start, stop := time.Now(), d.opt.clock()
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil && time.Since(start) < d.opt.Slice && ctx.Err() == nil {
				errs[i] = one(ctx, d.some())
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return int(done.Load()), stop(), errors.Join(append(errs, ctx.Err())...)
}

func (d dispatcher) some() []sold {
	ms := make([]sold, d.messages)
	for i := range ms {
		ms[i] = sold{fmt.Sprint("customer-", rand.IntN(d.opt.Keys)), 100, note}
	}
	return ms
}

func anys(ms []sold) []any {
	all := make([]any, len(ms))
	for i, m := range ms {
		all[i] = m
	}
	return all
}
