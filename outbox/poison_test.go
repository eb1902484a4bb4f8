package outbox

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

var errReset, errRefused = errors.New("connection reset by peer"), errors.New("refused")

// keyed returns n rows with different keys.
func keyed(n int) []ClaimedRow {
	rows := make([]ClaimedRow, n)
	for i := range rows {
		rows[i] = ClaimedRow{ID: int64(i), Record: &waybill.Record{ID: waybill.MessageID{byte(i >> 8), byte(i), 1}, Key: fmt.Sprint(i)}}
	}
	return rows
}

// send publishes rows with a window, through a broker that ends the connection
// whenever a culprit is in flight.
func send(rows []ClaimedRow, window int, cut *ConnectionLostError, culprit func(ClaimedRow) bool) *batch {
	b := newBatch(rows, false)
	for items := b.take(window, nil); len(items) > 0; items = b.take(window, nil) {
		var err error
		if slices.ContainsFunc(items, func(i Item) bool { return culprit(rows[i.Seq]) }) {
			err = cut
		}
		for _, item := range items {
			b.Done(item.Seq, err)
		}
	}
	return b
}

func without(rows []ClaimedRow, gone func(ClaimedRow) bool) []ClaimedRow {
	return slices.DeleteFunc(slices.Clone(rows), gone)
}

// Only culprits are convicted, at any position, and each leaves its batch after at
// most two lost connections.
func TestRowsThatEndTheConnectionAreFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(t, "rows")
		culprits := rapid.SliceOfNDistinct(rapid.Int64Range(0, int64(n-1)), 1, min(n-1, 3), rapid.ID).Draw(t, "culprits")
		culprit := func(r ClaimedRow) bool { return slices.Contains(culprits, r.ID) }
		blamed := rapid.Bool().Draw(t, "the broker says so")
		window := rapid.IntRange(1, 80).Draw(t, "window")
		s, cut := newPoisonDetector(), &ConnectionLostError{Err: errReset, CausedByMessage: blamed}
		rows := keyed(n)
		var convicted []int64
		for pass := 0; len(rows) > 0; pass++ {
			if pass > 2*n+4 {
				t.Fatalf("%d rows are left after %d batches", len(rows), pass)
			}
			b := send(rows, window, cut, culprit)
			apart := s.observe(b)
			done, _ := b.finished()
			for _, f := range apart {
				other := []ClaimedRow{{Record: &waybill.Record{ID: waybill.MessageID{9}, Key: "other"}}} // is published
				s.observe(send(other, 1, nil, func(ClaimedRow) bool { return false }))
				for tries := 0; ; tries++ {
					alone := send([]ClaimedRow{f.Row}, 1, cut, culprit)
					still := s.confirm(alone)
					if _, failed := alone.finished(); len(failed) > 0 {
						convicted = append(convicted, f.Row.ID)
					}
					if len(still) == 0 {
						break
					}
					if tries > poisonAfter {
						t.Fatalf("row %d is a suspect after %d tries", f.Row.ID, tries)
					}
				}
			}
			rows = without(rows, func(r ClaimedRow) bool {
				is := func(other ClaimedRow) bool { return other.ID == r.ID }
				return slices.ContainsFunc(done, is) || slices.ContainsFunc(apart, func(f Failure) bool { return is(f.Row) })
			})
		}
		slices.Sort(convicted)
		slices.Sort(culprits)
		if !slices.Equal(convicted, culprits) {
			t.Fatalf("convicted %v, want %v", convicted, culprits)
		}
	})
}

// A row is convicted only while other rows are published, unless the broker blames it.
func TestOutageConvictsNobody(t *testing.T) {
	s, rows := newPoisonDetector(), keyed(1)
	always := func(ClaimedRow) bool { return true }
	for range 200 {
		b := send(rows, 1, &ConnectionLostError{Err: errReset}, always)
		if s.confirm(b); b.refused() > 0 {
			t.Fatal("a row is convicted, although no row is published")
		}
	}
	b := send(rows, 1, &ConnectionLostError{Err: errReset, CausedByMessage: true}, always)
	if s.confirm(b); b.refused() != 1 {
		t.Error("a row that the broker blames is not convicted")
	}
}

// A row that shared its lost connection with other rows is a suspect, never convicted.
func TestRowIsSuspectedAfterTwoLostConnections(t *testing.T) {
	s, rows := newPoisonDetector(), keyed(3)
	cut := &ConnectionLostError{Err: errReset}
	for pass, want := range []int{0, 3, 3} {
		b := send(rows, 9, cut, func(r ClaimedRow) bool { return r.ID == 1 })
		apart := s.observe(b)
		if len(apart) != want || b.refused() > 0 {
			t.Errorf("batch %d: %d rows to be tried apart, %d refused, want %d and none", pass, len(apart), b.refused(), want)
		}
		for _, f := range apart {
			if !f.Suspect {
				t.Errorf("row %d is no suspect", f.Row.ID)
			}
		}
	}
}

func TestRouteIsBlockedAfterThreeMessagesInARow(t *testing.T) {
	s := newPoisonDetector()
	fails := func(key string, err error) Failure {
		return Failure{Row: ClaimedRow{Record: &waybill.Record{Key: key, Name: "x"}}, Err: err}
	}
	nowhere, silent := &UnroutableError{Reason: "NO_ROUTE"}, &UnconfirmedError{After: time.Second}
	for _, step := range []struct {
		what   string
		done   []ClaimedRow
		failed []Failure
		want   []bool
	}{
		{"two", nil, []Failure{fails("a", nowhere), fails("b", nowhere)}, []bool{false, false}},
		{"one got through, then another", []ClaimedRow{{Record: &waybill.Record{Name: "x"}}}, []Failure{fails("c", nowhere)}, []bool{false}},
		{"three more", nil, []Failure{fails("d", nowhere), fails("e", silent), fails("f", nowhere)}, []bool{true}},
		{"a refusal of another kind", nil, []Failure{fails("g", errRefused)}, []bool{false}},
	} {
		var got []bool
		for _, f := range s.routes(step.done, step.failed) {
			got = append(got, f.Route)
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: failures of routes %v, want %v", step.what, got, step.want)
		}
	}
	s.confirm(send([]ClaimedRow{{Record: &waybill.Record{Key: "d", Name: "x"}}}, 1, nil, func(ClaimedRow) bool { return false }))
	if got := s.routes(nil, []Failure{fails("h", nowhere)}); got[0].Route {
		t.Error("the route is blocked again by one failure, after its retry got through")
	}
}

type beating struct {
	Publisher
	heartbeat time.Duration
}

func (b beating) Traits() PublisherTraits { return PublisherTraits{Heartbeat: b.heartbeat} }

func TestIdleTimeoutMustOutlastDeadlineAndHeartbeats(t *testing.T) {
	for _, c := range []struct {
		deadline, heartbeat time.Duration
		ok                  bool
	}{
		{10 * time.Second, 5 * time.Second, true}, {13 * time.Second, 5 * time.Second, true}, {13*time.Second + 1, 5 * time.Second, false},
		{28 * time.Second, 0, true}, {28*time.Second + 1, 0, false},
	} {
		if err := CheckFence(30*time.Second, c.deadline, beating{heartbeat: c.heartbeat}); (err == nil) != c.ok {
			t.Errorf("deadline %v, heartbeat %v: %v", c.deadline, c.heartbeat, err)
		}
	}
}
