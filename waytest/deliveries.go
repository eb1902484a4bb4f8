package waytest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
)

// An effect is the write that a handler makes once: for a message, or for all
// messages with the same idempotency key.
type effect struct{ handler, dedup string }

// A deliveryModel is a model of an inbox: the effects so far, and the planned
// failures of the next attempts.
type deliveryModel[TX any] struct {
	*fixture[TX]
	processes []*handling[TX]
	next      *int
	losing    *sync.Mutex // one transaction is lost at a time

	mu       sync.Mutex
	recs     []*waybill.Record
	dedup    map[int]string // by number of the message
	plans    map[effect][]string
	done     map[effect]bool
	repeated []effect // done effects whose handler ran again
	sent     map[effect]int
}

// both are the handlers of each process: one with a transaction for each message,
// and one with groups.
var both = []string{"single", "grouped"}

// The law of the inbox, for repeated and concurrent deliveries to any process and
// for handlers that fail in any way: each handler's effect and its dispatched
// message commit together, once for each message or idempotency key; an attempt
// without a planned failure succeeds; the effects of a successful delivery stay;
// and no handler runs again after its effect.
func groupsHaveOneEffectEach[TX any](t *testing.T, s *fixture[TX]) {
	if err := s.inOwnTx(func(ctx context.Context, tx TX) error { return s.Insert(ctx, tx, "there 0 0") }); err != nil {
		t.Fatal(err)
	}
	m := &deliveryModel[TX]{fixture: s, next: new(int), losing: new(sync.Mutex)}
	for i, store := range s.relays(2) {
		there := *s
		there.Store = store
		h := there.handling()
		h.attempts.Store(int64(i) << 32)
		out := newOutbox(t, store, outbox.Config{})
		h.handle("single", m.handler(out, "single"))
		inbox.Handle(h.bus, there.inbox(), "grouped", h.effect("grouped", m.handler(out, "grouped")), inbox.Group(3), inbox.Option{Linger: time.Millisecond})
		m.processes = append(m.processes, h)
	}
	rapid.Check(t, often(7, func(rt *rapid.T) {
		m.recs, m.dedup, m.plans, m.done, m.sent = nil, map[int]string{}, map[effect][]string{}, map[effect]bool{}, map[effect]int{}
		m.repeated = nil
		rt.Repeat(map[string]func(*rapid.T){
			"arrive":  m.arrive,
			"plan":    m.plan,
			"deliver": m.deliver,
		})
		all := len(slices.Compact(slices.Sorted(maps.Values(m.dedup)))) * len(both)
		for tries := 0; len(m.done) < all; tries++ {
			if tries == 10 { // a plan has three steps at most
				rt.Fatalf("%d effects in the end, want %d", len(m.done), all)
			}
			m.receive(rt, m.recs, make([]int, len(m.recs)))
		}
	}))
}

// handler fails as planned, after its effect and its dispatch.
func (m *deliveryModel[TX]) handler(out *outbox.Outbox[TX], name string) func(ctx context.Context, tx TX, o order) error {
	return func(ctx context.Context, tx TX, o order) error {
		if _, err := out.Dispatch(ctx, tx, order{fmt.Sprint(name, o.Seq), o.Seq}); err != nil {
			return err
		}
		switch step := m.step(name, o.Seq); step {
		case "":
		case "error":
			return errChangedMind
		case "panic":
			panic("boom")
		case "ignored error":
			_ = m.Insert(ctx, tx, "there 0 0")
		default:
			m.losing.Lock()
			defer m.losing.Unlock()
			if err := m.Losses[step](ctx, tx); err == nil {
				m.t.Errorf("%s is no error: the case proves nothing", step)
			}
			_ = m.Insert(ctx, tx, fmt.Sprint(name, " ", o.Seq, " after the loss")) // as a handler does that ignores it
		}
		return nil
	}
}

// step returns the planned failure of this attempt; "" means success.
func (m *deliveryModel[TX]) step(name string, seq int) (step string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := effect{name, m.dedup[seq]}
	if m.done[e] {
		m.repeated = append(m.repeated, e)
	}
	if plan := m.plans[e]; len(plan) > 0 {
		step, m.plans[e] = plan[0], plan[1:]
	}
	return step
}

// arrive makes a message, which may be a duplicate by its idempotency key.
func (m *deliveryModel[TX]) arrive(rt *rapid.T) {
	*m.next++
	rec := arrival(m.t, order{fmt.Sprint("k", *m.next), *m.next})
	m.dedup[*m.next] = rec.ID.String()
	if rapid.IntRange(0, 2).Draw(rt, "idempotency key") == 0 {
		key := fmt.Sprint("key ", *m.next)
		if keys := slices.DeleteFunc(slices.Clone(m.recs), func(r *waybill.Record) bool { return r.Headers == nil }); len(keys) > 0 && rapid.Bool().Draw(rt, "again") {
			key = rapid.SampledFrom(keys).Draw(rt, "of").Headers[waybill.HeaderIdempotencyKey]
		}
		rec.Headers = map[string]string{waybill.HeaderIdempotencyKey: key}
		m.dedup[*m.next] = key
	}
	m.recs = append(m.recs, rec)
}

// plan has the next attempts of a handler at a message fail.
func (m *deliveryModel[TX]) plan(rt *rapid.T) {
	if len(m.recs) == 0 {
		rt.SkipNow()
	}
	e := effect{rapid.SampledFrom(both).Draw(rt, "handler"), m.dedupOf(rapid.SampledFrom(m.recs).Draw(rt, "message"))}
	steps := []string{"error", "panic", "ignored error"}
	if len(m.Losses) > 0 && rapid.IntRange(0, 7).Draw(rt, "lose") == 0 { // that takes its time
		steps = slices.Sorted(maps.Keys(m.Losses))
	}
	m.plans[e] = append(m.plans[e], rapid.SampledFrom(steps).Draw(rt, "step"))
	if len(m.plans[e]) > 3 {
		m.plans[e] = m.plans[e][:3]
	}
}

func (m *deliveryModel[TX]) dedupOf(rec *waybill.Record) string { return m.dedup[bodyOf(rec).Seq] }

// deliver delivers some messages at once, a few of them more often than once.
func (m *deliveryModel[TX]) deliver(rt *rapid.T) {
	if len(m.recs) == 0 {
		rt.SkipNow()
	}
	var recs []*waybill.Record
	var to []int
	for range rapid.IntRange(1, 6).Draw(rt, "deliveries") {
		recs = append(recs, rapid.SampledFrom(m.recs).Draw(rt, "message"))
		to = append(to, rapid.IntRange(0, len(m.processes)-1).Draw(rt, "process"))
	}
	m.receive(rt, recs, to)
}

// receive delivers recs at once to these processes, and compares the effects with
// the model.
func (m *deliveryModel[TX]) receive(rt *rapid.T, recs []*waybill.Record, to []int) {
	fine := map[string]bool{}
	for _, rec := range recs {
		dedup := m.dedupOf(rec)
		fine[dedup] = !slices.ContainsFunc(both, func(name string) bool { return len(m.plans[effect{name, dedup}]) > 0 })
	}
	errs := make([]error, len(recs))
	var all sync.WaitGroup
	for i, rec := range recs {
		all.Go(func() { errs[i] = m.processes[to[i]].receive(rec) })
	}
	all.Wait()
	effects := m.effects(rt)
	for e := range m.done {
		if effects[e] == 0 {
			rt.Fatalf("the effect %v is gone", e)
		}
	}
	for i, rec := range recs {
		dedup := m.dedupOf(rec)
		if errs[i] != nil && fine[dedup] {
			rt.Fatalf("delivery of %s, of which no handler was to fail = %v", dedup, errs[i])
		}
		for _, name := range both {
			if errs[i] == nil && effects[effect{name, dedup}] == 0 {
				rt.Fatalf("delivery of %s = nil, and %s has no effect", dedup, name)
			}
		}
	}
	for e := range effects {
		m.done[e] = true
	}
	if len(m.repeated) > 0 {
		rt.Fatalf("handlers ran for what was done: %v", m.repeated)
	}
}

// effects returns the effects of this check, and fails unless each is there once,
// with one dispatched message.
func (m *deliveryModel[TX]) effects(rt *rapid.T) map[effect]int {
	texts, err := m.Texts(context.Background())
	must(rt, err)
	effects := map[effect]int{}
	for _, text := range texts {
		var name string
		var seq int
		_, err := fmt.Sscan(text, &name, &seq)
		must(rt, err)
		if dedup, ok := m.dedup[seq]; ok {
			effects[effect{name, dedup}]++
		}
	}
	rows, err := visit(m.Store, outbox.DefaultTransport, true)
	must(rt, err)
	for _, row := range rows {
		o := bodyOf(row.Record)
		for _, name := range both {
			if o.Key == fmt.Sprint(name, o.Seq) {
				m.sent[effect{name, m.dedup[o.Seq]}]++
			}
		}
	}
	for e, n := range effects {
		if n != 1 || m.sent[e] != 1 {
			rt.Fatalf("%v has %d effects and dispatched %d times, want one of each", e, n, m.sent[e])
		}
	}
	if len(m.sent) != len(effects) {
		rt.Fatalf("%d effects and %d messages of them: %v and %v", len(effects), len(m.sent), effects, m.sent)
	}
	return effects
}
