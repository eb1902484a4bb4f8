package waytest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// Whatever statement of an operation is the last one of its process: the state is that
// before the operation or that after it, and its successor receives each message once, in
// the order of its key.
func killBetweenStatementsLosesAndDoublesNothing[TX any](t *testing.T, s *fixture[TX]) {
	if s.Killable == nil || s.Retries == nil {
		t.Skip("no statement can be the last one, or there are no retry queues")
	}
	s.retryAdmin() // or skip
	process := s.Killable(t)
	for i, op := range mortalOperations[TX]() {
		if raced && i%3 > 0 {
			continue
		}
		kill := func(n int) (k *killed[TX], struck, ok bool) {
			k = &killed[TX]{fixture: s, process: process, transport: fmt.Sprint(op.name, " ", n)}
			k.open()
			act := op.prepare(k)
			if act == nil {
				return nil, false, false
			}
			k.audited = k.audits()
			k.before = k.state()
			return k, k.run(n, act), true
		}
		whole, _, ok := kill(0)
		if !ok {
			continue
		}
		undone, points := 0, 0
		for struck := true; struck && !t.Failed(); {
			points++
			var k *killed[TX]
			if k, struck, _ = kill(points); k.after == k.before {
				undone++
			}
			if k.before != whole.before || k.after != whole.before && k.after != whole.after || !struck && k.after != whole.after {
				t.Errorf("%s, killed after %d statements: from\n%s\nto\n%s\nwant it undone, or\n%s", op.name, points, k.before, k.after, whole.after)
			}
			k.succeed(whole.after)
		}
		if t.Failed() {
			return
		}
		t.Logf("%s: killed after each of %d statements, %d times undone", op.name, points-1, undone)
		if whole.before == whole.after || undone == 0 || undone >= points-1 {
			t.Errorf("%s: this proves nothing, with the state\n%s\nand then\n%s", op.name, whole.before, whole.after)
		}
	}
}

// killed is one operation on a transport of its own, whose process is killed.
type killed[TX any] struct {
	*fixture[TX]
	process       Process[TX]
	transport     string
	q, successor  worker.RetryQueue
	sent          []*waybill.Delivery
	held          []*waybill.Delivery // by q
	moves         []worker.Move       // of deliveries that the transport makes again
	audited       int
	before, after string
}

func (k *killed[TX]) open() {
	k.t.Helper()
	var errs [2]error
	k.q, errs[0] = k.process.Retries(k.transport, time.Hour)
	k.successor, errs[1] = k.Retries(k.transport, time.Hour)
	try(k.t, "Retries", errors.Join(errs[:]...))
}

// run runs the operation, and reports whether its process was killed in it. The leases of
// that one end.
func (k *killed[TX]) run(n int, act func() error) (struck bool) {
	k.t.Helper()
	k.process.KillAfter(n)
	err := act()
	if struck = k.process.Revive(); !struck && err != nil {
		k.t.Fatalf("%s: %v without a kill", k.transport, err)
	}
	if lost := k.q.Release(k.t.Context(), k.held...); len(k.held) > 0 && lost != nil && !errors.Is(lost, waybill.ErrLeaseLost) {
		k.t.Fatalf("%s: Release = %v", k.transport, lost)
	}
	if k.after = k.state(); struck && err == nil && k.after == k.before {
		k.t.Errorf("%s: it was undone without an error", k.transport)
	}
	return struck
}

// state is what an operator sees of the transport.
func (k *killed[TX]) state() string {
	k.t.Helper()
	var lines []string
	waiting, err := k.retryAdmin().Retries(k.t.Context(), admin.RetriesQuery{Transport: k.transport})
	try(k.t, "Retries", err)
	for _, m := range waiting {
		lines = append(lines, fmt.Sprintf("%s waits: %d failures, the last %q, parked %v, delayed %v", k.name(m.ID), m.Failures, m.LastError, m.Parked, m.DueAt != nil))
	}
	for _, state := range []string{"", admin.Removed} {
		found, err := k.deadLetters().Failed(k.t.Context(), admin.FailedQuery{Transport: k.transport, State: state})
		try(k.t, "Failed", err)
		for _, m := range found {
			lines = append(lines, fmt.Sprintf("%s is a dead letter: %s, %d failures, the last %q, %d bytes", k.name(m.ID), m.State, m.Failures, m.LastError, m.Bytes))
		}
	}
	for _, d := range k.sent {
		attempts, err := k.retryAdmin().FailedAttempts(k.t.Context(), k.transport, d.Record.ID)
		try(k.t, "FailedAttempts", err)
		for _, a := range attempts {
			lines = append(lines, fmt.Sprintf("%s: attempt %d %s", k.name(d.Record.ID), a.Attempt, a.Error))
		}
	}
	return strings.Join(append(lines, fmt.Sprint(k.audits()-k.audited, " audited")), "\n")
}

// name is that of a message, such as x0.
func (k *killed[TX]) name(id waybill.MessageID) string {
	for _, d := range k.sent {
		if o := bodyOf(d.Record); d.Record.ID == id {
			return fmt.Sprint(o.Key, o.Seq)
		}
	}
	return "a new one"
}

// audits is how many changes of operators are on record.
func (k *killed[TX]) audits() int {
	k.t.Helper()
	operator, ok := k.Store.(admin.DeadLetters)
	if !ok {
		return 0
	}
	entries, err := operator.Audit(k.t.Context(), 0, 0)
	try(k.t, "Audit", err)
	return len(entries)
}

// succeed handles what the transport delivers again, as the process did: that leads to
// the state after the operation. Then it replays the dead letters, releases parked messages,
// and handles all: each comes once, and nothing is left.
func (k *killed[TX]) succeed(after string) {
	k.t.Helper()
	if len(k.moves) > 0 {
		try(k.t, "Add of a successor", k.successor.Add(k.t.Context(), k.moves...))
		if diff := cmp.Diff(after, k.state()); diff != "" {
			k.t.Errorf("%s: its successor leaves (-want +got):\n%s", k.transport, diff)
		}
	}
	k.replay()
	k.release()
	waiting, err := k.retryAdmin().Retries(k.t.Context(), admin.RetriesQuery{Transport: k.transport})
	try(k.t, "Retries", err)
	want, got := map[string][]string{}, map[string][]string{}
	for _, m := range waiting {
		want[m.Key] = append(want[m.Key], m.ID.String())
	}
	for n := 0; n < len(waiting); {
		ds := receive(k.t, k.successor, many)
		for _, d := range ds {
			got[d.Record.Key] = append(got[d.Record.Key], d.Record.ID.String())
		}
		try(k.t, "Ack", k.successor.Ack(k.t.Context(), ds...))
		n += len(ds)
	}
	slices.Sort(want[""])
	slices.Sort(got[""])
	if diff := cmp.Diff(want, got); diff != "" {
		k.t.Errorf("%s: the successor receives by key (-want +got):\n%s", k.transport, diff)
	}
	if rest := k.state(); strings.Contains(rest, "waits:") || strings.Contains(rest, "failed, ") || strings.Contains(rest, "retrying, ") {
		k.t.Errorf("%s: in the end\n%s", k.transport, rest)
	}
}

// replay replays all dead letters.
func (k *killed[TX]) replay() {
	k.t.Helper()
	if numbers := k.numbers(); len(numbers) > 0 {
		_, err := k.deadLetters().RetryFailed(k.t.Context(), numbers...)
		try(k.t, "RetryFailed", err)
	}
}

func (k *killed[TX]) numbers() (numbers []int64) {
	k.t.Helper()
	found, err := k.deadLetters().Failed(k.t.Context(), admin.FailedQuery{Transport: k.transport})
	try(k.t, "Failed", err)
	for _, m := range found {
		numbers = append(numbers, m.Number)
	}
	return numbers
}

func (k *killed[TX]) release() {
	k.t.Helper()
	_, err := k.retryAdmin().ReleaseRetries(k.t.Context(), k.transport, "")
	try(k.t, "ReleaseRetries", err)
}
