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

// play publishes rows as a relay with that window does, through a broker that
// cuts the connection for everything in flight when a culprit is, and returns
// whom it blamed. With traffic a new row comes before each pass.
func play(t *trouble, rows []ClaimedRow, traffic bool, window, passes int, cuts func(ClaimedRow) bool) (left, blamed []ClaimedRow) {
	for pass := range passes {
		if traffic {
			rows = append(slices.Clone(rows), ClaimedRow{ID: int64(1000 + pass), Record: &waybill.Record{Key: fmt.Sprint("new", pass)}})
		}
		c := newBatch(rows, false, t.alone(rows))
		for {
			items := c.take(window, nil)
			if len(items) == 0 {
				break
			}
			var err error
			if slices.ContainsFunc(items, func(i Item) bool { return cuts(rows[i.Seq]) }) {
				err = &CutError{Err: errReset}
			}
			for _, item := range items {
				c.Done(item.Seq, err)
			}
		}
		t.learn(c)
		done, failed := c.finished()
		for _, f := range failed {
			blamed = append(blamed, f.Row)
		}
		rows = slices.DeleteFunc(slices.Clone(rows), func(r ClaimedRow) bool {
			return slices.ContainsFunc(done, func(d ClaimedRow) bool { return d.ID == r.ID }) || slices.ContainsFunc(blamed, func(b ClaimedRow) bool { return b.ID == r.ID })
		})
	}
	return rows, blamed
}

// Wherever the culprits stand, they are found and nobody else is, and all the
// others get through. (One that is left over with nothing else to publish could
// not be told from an outage, which is why there is traffic.)
func TestRowsThatCutTheConnectionAreFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(t, "rows")
		culprits := rapid.SliceOfNDistinct(rapid.Int64Range(0, int64(n-1)), 1, min(n-1, 3), rapid.ID).Draw(t, "culprits")
		rows := make([]ClaimedRow, n)
		for i := range rows {
			rows[i] = ClaimedRow{ID: int64(i), Record: &waybill.Record{Key: fmt.Sprint(i)}}
		}
		left, blamed := play(newTrouble(), rows, true, rapid.IntRange(1, 80).Draw(t, "window"), 12, func(r ClaimedRow) bool { return slices.Contains(culprits, r.ID) })
		var found []int64
		for _, r := range blamed {
			found = append(found, r.ID)
		}
		slices.Sort(found)
		slices.Sort(culprits)
		if !slices.Equal(found, culprits) || len(left) > 0 {
			t.Fatalf("blamed %v, want %v; %d rows left", found, culprits, len(left))
		}
	})
}

func TestOutageBlamesNobody(t *testing.T) {
	for _, n := range []int{1, 2, 40} {
		rows := make([]ClaimedRow, n)
		for i := range rows {
			rows[i] = ClaimedRow{ID: int64(i), Record: &waybill.Record{Key: fmt.Sprint(i)}}
		}
		memory := newTrouble()
		if left, blamed := play(memory, rows, false, 16, 200, func(ClaimedRow) bool { return true }); len(blamed) > 0 || len(left) != n {
			t.Errorf("%d rows: an outage is blamed on %d", n, len(blamed))
		}
		if left, blamed := play(memory, rows, false, 16, 3, func(ClaimedRow) bool { return false }); len(blamed)+len(left) > 0 || len(memory.cuts) > 0 {
			t.Errorf("%d rows: after it %d are blamed, %d left, %d remembered", n, len(blamed), len(left), len(memory.cuts))
		}
	}
}

// A broker that says why it ends the connection is believed, once the message
// was alone.
func TestRowThatTheBrokerBlamesIsConvictedAtOnce(t *testing.T) {
	memory := newTrouble()
	rows := []ClaimedRow{{Record: &waybill.Record{Key: "a"}}}
	for pass, want := range []int{0, 1} {
		c := newBatch(rows, false, memory.alone(rows))
		for _, item := range c.take(9, nil) {
			c.Done(item.Seq, &CutError{Err: errReset, Blamed: true})
		}
		memory.learn(c)
		if _, failed := c.finished(); len(failed) != want {
			t.Errorf("pass %d: %d rows are blamed, want %d", pass, len(failed), want)
		}
	}
}

func TestRouteIsBlockedAfterThreeMessagesInARow(t *testing.T) {
	memory := newTrouble()
	nowhere := func(id int64, key string, failures int) Failure {
		return Failure{Row: ClaimedRow{ID: id, Record: &waybill.Record{Key: key, Name: "x"}, RouteFailures: failures}, Err: &UnroutableError{Reason: "NO_ROUTE"}}
	}
	kinds := func(fs []Failure) (all []bool) {
		for _, f := range fs {
			all = append(all, f.Route)
		}
		return all
	}
	for _, step := range []struct {
		what   string
		done   []ClaimedRow
		failed []Failure
		want   []bool
	}{
		{"two", nil, []Failure{nowhere(1, "a", 0), nowhere(2, "b", 0)}, []bool{false, false}},
		{"one got through, then another", []ClaimedRow{{Record: &waybill.Record{Name: "x"}}}, []Failure{nowhere(3, "c", 0)}, []bool{false}},
		{"three more", nil, []Failure{nowhere(4, "d", 0), nowhere(5, "e", 0), nowhere(6, "f", 0)}, []bool{true}},
		{"the blocked route, tried again", nil, []Failure{nowhere(4, "d", 1), nowhere(5, "e", 1)}, []bool{true}},
		{"a refusal of another kind", nil, []Failure{{Row: ClaimedRow{Record: &waybill.Record{Key: "g", Name: "x"}}, Err: errRefused}}, []bool{false}},
	} {
		if got := kinds(memory.routes(step.done, step.failed)); !slices.Equal(got, step.want) {
			t.Errorf("%s: failures of routes %v, want %v", step.what, got, step.want)
		}
	}
}

type idleStore struct{ Store }

func (idleStore) IdleTimeout() time.Duration { return 30 * time.Second }

type beating struct{ Publisher }

func (beating) Heartbeat() time.Duration { return 5 * time.Second }

func TestIdleTimeoutMustOutlastDeadlineAndHeartbeats(t *testing.T) {
	for _, c := range []struct {
		deadline time.Duration
		to       Publisher
		ok       bool
	}{
		{10 * time.Second, beating{}, true}, {13 * time.Second, beating{}, true}, {13*time.Second + 1, beating{}, false},
		{28 * time.Second, nil, true}, {28*time.Second + 1, nil, false},
	} {
		if err := checkFence(idleStore{}, c.to, RelayConfig{PublishDeadline: c.deadline}); (err == nil) != c.ok {
			t.Errorf("deadline %v, heartbeat %v: %v", c.deadline, c.to != nil, err)
		}
	}
}
