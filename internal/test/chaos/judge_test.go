//go:build chaos

package chaos

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/test/verdict"
)

// A message is one that is committed, that arrived or that was handled.
type message struct {
	counted
	id    string
	relay string // that sent it
	at    int64  // microseconds: when it was sent or handled
}

// evidence is all that is left of a campaign.
type evidence struct {
	outcomes map[string]entry // of attempts, by the journals
	// The database's own word, and the order of the effects.
	committed, handled []message
	arrived            []message // in the queue of the broker, in its order
	suppressed         int       // by the inbox
	losses             []loss
	calmUntil          int64 // microseconds: no fault before it, and relays with their defaults
}

// An entry is the outcome of an attempt in a journal; at is the time of its end.
type entry struct {
	outcome string
	at      int64
}

// A report is the result of a campaign. Its JSON form is stable.
type report struct {
	Database string `json:"database"`
	Seed     uint64 `json:"seed"`
	Stored   bool   `json:"stored"` // workers had a store, and some handlers failed

	Attempts   int `json:"attempts"` // at a transaction
	Committed  int `json:"committed"`
	RolledBack int `json:"rolled_back"`
	Unknown    int `json:"unknown"`
	Messages   int `json:"messages"` // that are committed

	Lost             int `json:"lost"`    // committed, and not in the broker or without an effect
	Phantoms         int `json:"phantom"` // in the broker or with an effect, and not committed
	DuplicateEffects int `json:"duplicate_effects"`
	OrderViolations  int `json:"order_violations"` // of first deliveries to the broker, and of effects
	IDChanges        int `json:"id_changes"`

	DuplicateDeliveries int `json:"duplicate_deliveries"` // to the broker
	DuplicatesBound     int `json:"duplicates_bound"`     // explained by the faults
	CalmDuplicates      int `json:"calm_duplicates"`      // sent twice before the first fault, while relays came and went
	Suppressed          int `json:"suppressed"`           // deliveries to workers

	Retried             int `json:"retried"`               // effects of messages that had failed before
	DeadLetters         int `json:"dead_letters"`          // before the replay
	DeadLettersExpected int `json:"dead_letters_expected"` // committed messages that cannot be handled before it
	FailuresLeft        int `json:"failures_left"`         // rows of the store after it

	Takeover takeover `json:"takeover_after_kill"`
	Thaw     takeover `json:"takeover_after_freeze"`

	CrashPoints map[string]int `json:"crash_points"`
	Faults      map[string]int `json:"faults"`

	SlowestRecovery float64 `json:"slowest_recovery_seconds"` // of a server: from its start to the next effect
	SecondsToDrain  float64 `json:"seconds_to_drain"`
	Rate            float64 `json:"rate"` // messages committed a second, faults included

	found []string // the first violations, in words
}

// A takeover is how long the keys of lost relays waited.
type takeover struct {
	Keys int     `json:"keys"`
	P50  float64 `json:"p50_seconds"`
	P99  float64 `json:"p99_seconds"`
	Last string  `json:"slowest"` // of the keys, in words
}

func (r *report) find(count *int, format string, args ...any) {
	if *count++; *count <= 5 {
		r.found = append(r.found, fmt.Sprintf(format, args...))
	}
}

// judge compares the committed messages with the deliveries and the effects.
func (r *report) judge(e *evidence) {
	written := map[string]bool{} // attempts
	for _, m := range e.committed {
		written[m.Attempt] = true
	}
	r.Messages, r.Suppressed = len(e.committed), e.suppressed
	for attempt, end := range e.outcomes {
		r.Attempts++
		switch end.outcome {
		case committed:
			if r.Committed++; !written[attempt] {
				r.find(&r.Lost, "lost: %s was told that it is committed, and it is not", attempt)
			}
		case rolledBack:
			if r.RolledBack++; written[attempt] {
				r.find(&r.Phantoms, "phantom: %s was told that it is rolled back, and it is committed", attempt)
			}
		default:
			r.Unknown++
		}
	}
	all := verdicts(e.committed)
	arrived, handled := verdict.Compare(all, verdicts(e.arrived)), verdict.Compare(all, verdicts(e.handled))
	for what, f := range map[string]verdict.Findings{"delivery": arrived, "effect": handled} {
		r.Phantoms += f.Phantoms
		r.IDChanges += f.IDChanges
		r.OrderViolations += f.Disorders
		for _, words := range f.Words {
			r.found = append(r.found, what+": "+words)
		}
	}
	r.DuplicateDeliveries, r.DuplicateEffects = arrived.Duplicates, handled.Duplicates
	for _, m := range all {
		if !arrived.Has(m) || !handled.Has(m) {
			r.Lost++
		}
	}
	seen := map[string]message{}
	for _, m := range e.arrived {
		if m.at >= e.calmUntil {
			continue // the copy of a killed relay may arrive late from a socket buffer
		}
		if first, again := seen[m.id]; again {
			r.find(&r.CalmDuplicates, "duplicate without a fault: %s %d (%s), sent by %s %v before the faults and by %s %v before them",
				m.Key, m.N, m.id, first.relay, before(e, first), m.relay, before(e, m))
		}
		seen[m.id] = m
	}
	r.Takeover, r.Thaw = e.takeover(false), e.takeover(true)
}

// before is how long before the first fault a message was sent.
func before(e *evidence, m message) time.Duration {
	return time.Duration(e.calmUntil-m.at) * time.Microsecond
}

// verdicts returns messages as package verdict compares them.
func verdicts(all []message) []verdict.Message {
	out := make([]verdict.Message, len(all))
	for i, m := range all {
		out[i] = verdict.Message{Key: m.Key, N: m.N, ID: m.id, Origin: m.Attempt, Via: fmt.Sprintf("by %s at %d", m.relay, m.at), Unordered: free(m.Key)}
	}
	return out
}

// takeover measures the wait of keys in flight in a relay that was killed or
// frozen: until another relay sent the next message of the key, where one was
// committed before the loss.
func (e *evidence) takeover(frozen bool) takeover {
	sent := map[string][]message{} // by key
	for _, m := range e.arrived {
		sent[m.Key] = append(sent[m.Key], m)
	}
	var waits []float64
	last := ""
	for _, l := range e.losses {
		if l.frozen != frozen {
			continue
		}
		for key, since := range l.held {
			for _, m := range sent[key] {
				if m.relay == l.relay || m.at < since {
					continue
				}
				if end := e.outcomes[m.Attempt]; end.outcome == committed && end.at < l.at {
					wait := max(0, float64(m.at-l.at)/1e6)
					if len(waits) == 0 || wait > slices.Max(waits) {
						last = fmt.Sprintf("%s %d: %s had it, and was lost at %d; %s sent it at %d", m.Key, m.N, l.relay, l.at, m.relay, m.at)
					}
					waits = append(waits, wait)
				}
				break
			}
		}
	}
	slices.Sort(waits)
	return takeover{len(waits), quantile(waits, 0.5), quantile(waits, 0.99), last}
}

// quantile returns the value that a part q of all does not exceed.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// failures returns the objections to a campaign: first violations, and then reasons
// why it would prove nothing.
func (r *report) failures(p plan) []string {
	var all []string
	fail := func(bad bool, format string, args ...any) {
		if bad {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	for _, gate := range []struct {
		what string
		n    int
	}{{"lost", r.Lost}, {"phantom", r.Phantoms}, {"duplicate effects", r.DuplicateEffects}, {"order violations", r.OrderViolations}, {"id changes", r.IDChanges},
		{"duplicate deliveries without a fault", r.CalmDuplicates}, {"rows of failures that are left", r.FailuresLeft}} {
		fail(gate.n != 0, "%s: %d, want 0", gate.what, gate.n)
	}
	fail(r.DeadLetters != r.DeadLettersExpected, "%d dead letters, want %d", r.DeadLetters, r.DeadLettersExpected)
	fail(r.DuplicateDeliveries > r.DuplicatesBound, "%d duplicate deliveries, and the faults explain %d", r.DuplicateDeliveries, r.DuplicatesBound)
	fail(r.SlowestRecovery > p.recovery.Seconds(), "after the start of a server nothing was handled for %.1f s, want at most %v", r.SlowestRecovery, p.recovery)
	fail(r.Takeover.P99 > p.takeover.Seconds(), "keys of a killed relay waited %.2f s (p99), want at most %v", r.Takeover.P99, p.takeover)
	fail(r.Thaw.P99 > (idle+p.takeover).Seconds(), "keys of a frozen relay waited %.2f s (p99), want at most %v", r.Thaw.P99, idle+p.takeover)

	const proof = ": the campaign proves nothing"
	fail(r.Committed == 0 || r.RolledBack == 0, "%d attempts committed and %d rolled back"+proof, r.Committed, r.RolledBack)
	fail(r.DuplicateDeliveries == 0 || r.Suppressed == 0, "%d duplicate deliveries, %d suppressed"+proof, r.DuplicateDeliveries, r.Suppressed)
	fail(p.measures && (r.Takeover.Keys == 0 || r.Thaw.Keys == 0), "%d keys of killed and %d of frozen relays"+proof, r.Takeover.Keys, r.Thaw.Keys)
	fail(r.Stored && (r.Retried == 0 || r.DeadLetters == 0), "%d messages were retried, %d dead letters"+proof, r.Retried, r.DeadLetters)
	for _, point := range points(r.Stored) {
		fail(r.CrashPoints[point] == 0, "nothing crashed at %s"+proof, point)
	}
	for _, fault := range append(slices.Clone(processFaults), serverFaults...) {
		fail(r.Faults[fault.name] == 0, "no %s"+proof, fault.name)
	}
	return all
}

// String is the report as people read it.
func (r *report) String() string {
	var b strings.Builder
	line := func(what string, value any) { fmt.Fprintf(&b, "%-26s %v\n", what, value) }
	line("database", r.Database)
	line("seed", r.Seed)
	line("attempts", fmt.Sprintf("%d: %d committed, %d rolled back, %d unknown; %d messages, %.0f a second", r.Attempts, r.Committed, r.RolledBack, r.Unknown, r.Messages, r.Rate))
	line("lost", r.Lost)
	line("phantom", r.Phantoms)
	line("duplicate effects", r.DuplicateEffects)
	line("order violations", r.OrderViolations)
	line("id changes", r.IDChanges)
	line("duplicate deliveries", fmt.Sprintf("%d, at most %d explained by faults; %d while all was well", r.DuplicateDeliveries, r.DuplicatesBound, r.CalmDuplicates))
	line("suppressed by the inbox", r.Suppressed)
	line("failures", fmt.Sprintf("%d messages retried, %d dead letters replayed, %d rows left", r.Retried, r.DeadLetters, r.FailuresLeft))
	line("takeover after a kill", r.Takeover)
	line("takeover after a freeze", r.Thaw)
	line("seconds to drain", fmt.Sprintf("%.1f", r.SecondsToDrain))
	line("slowest recovery", fmt.Sprintf("%.1f s", r.SlowestRecovery))
	line("crash points", counts(r.CrashPoints))
	line("faults", counts(r.Faults))
	for _, found := range r.found {
		fmt.Fprintln(&b, found)
	}
	return b.String()
}

func (t takeover) String() string {
	return fmt.Sprintf("%.3f s p50, %.3f s p99 of %d keys (the slowest: %s)", t.P50, t.P99, t.Keys, t.Last)
}

func counts(of map[string]int) string {
	var all []string
	for what, n := range of {
		all = append(all, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func TestJudgeSeesEachViolation(t *testing.T) {
	msg := func(key string, n int, attempt, id string) message {
		return message{counted: counted{key, n, attempt}, id: id, relay: "relay-1", at: int64(n)}
	}
	a1, a2, b1 := msg("a", 1, "d/1", "ia1"), msg("a", 2, "d/2", "ia2"), msg("b", 1, "d/2", "ib1")
	whole := func() *evidence {
		return &evidence{
			outcomes:  map[string]entry{"d/1": {committed, 1}, "d/2": {unknown, 2}, "d/3": {rolledBack, 3}},
			committed: []message{a1, a2, b1}, arrived: []message{a1, a1, b1, a2}, handled: []message{a1, a2, b1},
		}
	}
	type gates struct{ Lost, Phantoms, Effects, Order, IDs, Deliveries, Calm int }
	for _, test := range []struct {
		name   string
		change func(e *evidence)
		want   gates
	}{
		{"nothing", func(*evidence) {}, gates{Deliveries: 1}},
		{"a message that never came", func(e *evidence) { e.arrived = e.arrived[:3] }, gates{Lost: 1, Deliveries: 1}},
		{"a message without an effect", func(e *evidence) { e.handled = e.handled[:2] }, gates{Lost: 1, Deliveries: 1}},
		{"a commit that is gone", func(e *evidence) { e.outcomes["d/4"] = entry{committed, 4} }, gates{Lost: 1, Deliveries: 1}},
		{"half of an unknown attempt", func(e *evidence) { e.committed = e.committed[:2] }, gates{Phantoms: 2, Deliveries: 1}},
		{"a rollback that was none", func(e *evidence) { e.outcomes["d/1"] = entry{rolledBack, 1} }, gates{Phantoms: 1, Deliveries: 1}},
		{"another's content", func(e *evidence) { e.handled[1].Attempt = "d/3" }, gates{Lost: 1, Phantoms: 1, Deliveries: 1}},
		{"a second effect", func(e *evidence) { e.handled = append(e.handled, a1) }, gates{Effects: 1, Deliveries: 1}},
		{"deliveries out of order", func(e *evidence) { e.arrived = []message{a2, a1, b1} }, gates{Order: 2}},
		{"effects out of order", func(e *evidence) { e.handled = []message{a2, b1, a1} }, gates{Order: 2, Deliveries: 1}},
		{"another id", func(e *evidence) { e.arrived[1].id = "new" }, gates{IDs: 1, Deliveries: 1}},
		{"a duplicate before the faults", func(e *evidence) { e.calmUntil = 2 }, gates{Deliveries: 1, Calm: 1}},
		{"a message of before the faults that a fault has sent again", func(e *evidence) {
			e.calmUntil = 2
			e.arrived[0].at = 3
		}, gates{Deliveries: 1}},
	} {
		e, r := whole(), &report{}
		test.change(e)
		r.judge(e)
		if got := (gates{r.Lost, r.Phantoms, r.DuplicateEffects, r.OrderViolations, r.IDChanges, r.DuplicateDeliveries, r.CalmDuplicates}); got != test.want {
			t.Errorf("%s: %+v, want %+v\n%s", test.name, got, test.want, strings.Join(r.found, "\n"))
		}
	}
}

func TestTakeoverIsWhatAKeyWaitsForAnotherRelay(t *testing.T) {
	sent := func(key string, n int, by string, at int64) message {
		return message{counted: counted{key, n, fmt.Sprint(n)}, relay: by, at: at}
	}
	const second = 1_000_000
	e := &evidence{
		outcomes: map[string]entry{"1": {committed, 1}, "2": {committed, 2}, "3": {committed, 9 * second}},
		arrived: []message{
			sent("a", 1, "dead", 3*second), sent("a", 1, "other", 6*second), sent("a", 2, "other", 7*second),
			sent("b", 1, "other", second), sent("b", 2, "dead", 3*second), // no takeover was needed
			sent("c", 3, "other", 10*second), // committed after the end
		},
		losses: []loss{{relay: "dead", at: 4 * second, held: map[string]int64{"a": 2 * second, "b": 2 * second, "c": 2 * second}}},
	}
	if got, want := e.takeover(false), (takeover{1, 2, 2, "a 1: dead had it, and was lost at 4000000; other sent it at 6000000"}); got != want {
		t.Errorf("takeover = %+v, want %+v", got, want)
	}
	if got := e.takeover(true); got.Keys != 0 {
		t.Errorf("takeover after a freeze = %+v, want none", got)
	}
}
