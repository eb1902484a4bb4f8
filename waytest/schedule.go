package waytest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// A schedule is a model of the outbox and its users: waiting messages, open claims
// and the possible next actions.
type schedule[TX any] struct {
	*fixture[TX]
	*waitingModel
	relays   []relayProcess
	operator admin.Database // nil when the store is no admin.Database
	out      *outbox.Outbox[TX]

	keys     []string
	slow     string // the key of delayed messages, without open transactions: their lock would defer the promotion
	routes   bool   // some refusals block a route
	next     *int
	failures map[order]int  // of a head
	asleep   map[order]bool // heads refused for an hour
	held     []heldClaim
	open     []*openTx
	behind   *openTx // a unit of work that waits for one of those, or nil
	done     chan error
}

// A relayProcess is a store that relays. It may notice a cut connection late.
type relayProcess struct {
	outbox.Store
	crash func() // nil when it cannot
	cut   *bool
}

type heldClaim struct {
	outbox.Claim
	by   int
	rows []order
}

// openTx is a transaction that has dispatched and is open.
type openTx struct {
	end  func(commit bool) error
	sent []order
}

// The guarantee of order, under any schedule: concurrent transactions that end in
// any order, dispatchers that hold a bucket's lock and dispatchers that wait for
// it, delayed messages, concurrent claims that are settled in any order, short and
// long refusals, outages, crashes, an operator, several relays. Each claim has the
// next messages of its keys in commit order, so that first deliveries are in that
// order; no message is in two claims; a blocked head holds back the later messages
// of its key and nothing else; a message that was rolled back never comes; and in
// the end every message has come.
func anyScheduleKeepsTheOrder[TX any](t *testing.T, s *fixture[TX]) {
	all := schedule[TX]{fixture: s, out: s.outbox(outbox.Config{}), next: new(int)}
	all.operator, _ = s.Store.(admin.Database)
	blocksRoutes := s.Store.Traits().BlocksRoutes
	all.relays = []relayProcess{{Store: s.Store}}
	if s.Crashing != nil {
		store, crash := s.Crashing(t)
		all.relays = append(all.relays, relayProcess{store, crash, new(bool)})
	}
	others := otherBuckets(3)
	all.keys, all.slow = append(sameBucket(3), others[:2]...), others[2]
	rapid.Check(t, often(12, func(rt *rapid.T) {
		m := all
		m.waitingModel, m.failures, m.asleep = newWaitingModel(), map[order]int{}, map[order]bool{}
		defer m.abandon() // after a failure, for the smaller cases that rapid tries
		// A blocked route holds keys back that have not failed themselves.
		m.routes = blocksRoutes && m.operator != nil && rapid.Bool().Draw(rt, "routes")
		rt.Repeat(map[string]func(*rapid.T){
			"":                  m.check,
			"dispatch":          m.dispatch,
			"dispatch more":     m.dispatch, // twice as often
			"dispatch delayed":  m.dispatchDelayed,
			"begin":             m.begin,
			"wait for one open": m.wait,
			"end one open":      m.end,
			"claim":             m.claim,
			"claim more":        m.claim,
			"settle":            m.settle,
			"settle more":       m.settle,
			"crash":             m.crash,
			"operator releases": m.release,
			"look":              m.look,
		})
		m.drain(rt)
	}))
}

// must ends a check.
func must(rt *rapid.T, err error) {
	rt.Helper()
	if err != nil {
		rt.Fatal(err)
	}
}

// check is run after each action.
func (m *schedule[TX]) check(rt *rapid.T) {
	if len(m.done) > 0 {
		rt.Fatalf("a unit of work that dispatched %v did not wait for those who have its keys", m.behind.sent)
	}
	left, err := m.Store.Backlog(context.Background(), outbox.DefaultTransport)
	must(rt, err)
	if n := m.count() + len(m.delayed); left.Pending+left.Delayed != n {
		rt.Fatalf("Backlog = %+v, want %d pending or delayed", left, n)
	}
}

// messages draws some for keys, or none.
func (m *schedule[TX]) messages(rt *rapid.T, keys []string) (sent []order, msgs []any) {
	for range rapid.IntRange(1, 5).Draw(rt, "messages") {
		o := order{rapid.SampledFrom(keys).Draw(rt, "key"), *m.next}
		*m.next++
		var msg any = o
		if m.routes {
			msg = named(rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "name"), o)
		}
		sent, msgs = append(sent, o), append(msgs, msg)
	}
	return sent, msgs
}

// send dispatches drawn messages.
func (m *schedule[TX]) send(tx TX, msgs []any) error {
	for _, msg := range msgs {
		if _, err := m.out.Dispatch(context.Background(), tx, msg); err != nil {
			return err
		}
	}
	return nil
}

// taken reports whether a dispatch to key has to wait.
func (m *schedule[TX]) taken(key string) bool {
	holds := func(o *openTx) bool {
		return o != nil && slices.ContainsFunc(o.sent, func(sent order) bool {
			other := sent.Key
			return key != "" && other != "" && outbox.Bucket(other, buckets) == outbox.Bucket(key, buckets)
		})
	}
	return holds(m.behind) || slices.ContainsFunc(m.open, holds)
}

// left are the keys to which a dispatch need not wait, and none.
func (m *schedule[TX]) left(more ...string) []string {
	return append(slices.DeleteFunc(append(more, m.keys...), m.taken), "")
}

func (m *schedule[TX]) commit(sent []order) {
	for _, o := range sent {
		m.join(o)
	}
}

func (m *schedule[TX]) dispatch(rt *rapid.T) {
	sent, msgs := m.messages(rt, m.left(m.slow))
	keep := rapid.IntRange(0, 4).Draw(rt, "keep") > 0
	err := m.Store.InTx(context.Background(), func(_ context.Context, tx TX) error {
		if err := m.send(tx, msgs); err != nil || keep {
			return err
		}
		return errChangedMind
	})
	if keep {
		must(rt, err)
		m.commit(sent)
	} else if !errors.Is(err, errChangedMind) {
		rt.Fatalf("InTx = %v, want %v", err, errChangedMind)
	}
}

func (m *schedule[TX]) dispatchDelayed(rt *rapid.T) {
	for range rapid.IntRange(1, 3).Draw(rt, "messages") {
		o := order{rapid.SampledFrom([]string{m.slow, m.slow, ""}).Draw(rt, "key"), *m.next}
		*m.next++
		delay := time.Duration(rapid.IntRange(1, 30).Draw(rt, "delay")) * time.Millisecond
		start := time.Now()
		must(rt, send(context.Background(), m.out, waybill.NewEnvelope(o, waybill.Delay(delay))))
		m.delay(o, start, delay)
	}
}

// begin opens a transaction, which stays open.
func (m *schedule[TX]) begin(rt *rapid.T) {
	if m.OneWriter || len(m.open) == 3 {
		rt.SkipNow()
	}
	sent, msgs := m.messages(rt, m.left())
	tx, err := m.Begin(context.Background())
	must(rt, err)
	m.open = append(m.open, &openTx{sent: sent, end: func(commit bool) error {
		if commit {
			return m.Commit(context.Background(), tx)
		}
		return m.Rollback(context.Background(), tx)
	}})
	must(rt, m.send(tx, msgs))
}

// wait has a unit of work dispatch to a key that another transaction has. It
// must not commit before that one ends.
func (m *schedule[TX]) wait(rt *rapid.T) {
	taken := slices.DeleteFunc(slices.Clone(m.keys), func(key string) bool { return !m.taken(key) })
	if m.behind != nil || len(taken) == 0 {
		rt.SkipNow()
	}
	sent, msgs := m.messages(rt, taken)
	m.behind, m.done = &openTx{sent: sent}, make(chan error, 1)
	go func() {
		m.done <- m.Store.InTx(context.Background(), func(_ context.Context, tx TX) error { return m.send(tx, msgs) })
	}()
}

func (m *schedule[TX]) end(rt *rapid.T) {
	if len(m.open) == 0 {
		rt.SkipNow()
	}
	i := rapid.IntRange(0, len(m.open)-1).Draw(rt, "open")
	o := m.open[i]
	commit := rapid.IntRange(0, 3).Draw(rt, "commit") > 0
	m.open = slices.Delete(m.open, i, i+1)
	must(rt, o.end(commit))
	if commit {
		m.commit(o.sent)
	}
	m.letGo(rt)
}

// letGo waits for the waiting unit of work, unless another transaction still has
// its keys.
func (m *schedule[TX]) letGo(rt *rapid.T) {
	waiter := m.behind
	m.behind = nil
	if waiter == nil {
		return
	}
	if slices.ContainsFunc(waiter.sent, func(o order) bool { return m.taken(o.Key) }) {
		m.behind = waiter
		return
	}
	select {
	case err := <-m.done:
		must(rt, err)
		m.commit(waiter.sent)
	case <-time.After(patience):
		m.behind = waiter
		rt.Fatalf("a unit of work that dispatched %v waits, and nobody has its keys", waiter.sent)
	}
}

// look finds, while no claim is open, all waiting messages except long-refused
// heads and the messages behind them.
func (m *schedule[TX]) look(rt *rapid.T) {
	if len(m.held) > 0 || m.routes {
		rt.SkipNow()
	}
	r := m.relays[m.relay(rt)]
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		rows, err := visit(r, outbox.DefaultTransport, false)
		if r.unreachable(err) {
			continue
		}
		must(rt, err)
		var found []order
		for _, row := range rows {
			found = append(found, bodyOf(row.Record))
		}
		must(rt, m.see(found))
		want := group(m.awake())
		if cmp.Equal(want, byKey(rows)) {
			return
		}
		if time.Since(start) > patience { // some is due in a moment, or with a relay that crashed
			rt.Fatalf("look (-want +got):\n%s", cmp.Diff(want, byKey(rows)))
		}
	}
}
