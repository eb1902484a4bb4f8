package waytest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	scheduling "github.com/waybill-go/waybill/schedule"
)

// Schedules is the suite of schedules in a database.
func Schedules[TX any](t *testing.T, open func(t *testing.T) Harness[TX]) {
	runCases(t, open, []testCase[TX]{
		{"RowIsReplacedAsItWas", rowIsReplacedAsItWas[TX]},
		{"LongestNameAndSpecAreKept", longestNameAndSpecAreKept[TX]},
		{"EachTickIsSentOnce", eachTickIsSentOnce[TX]},
		{"TickSharesItsTransaction", tickSharesItsTransaction[TX]},
		{"ClockThatGoesBackSendsNothingTwice", clockThatGoesBackSendsNothingTwice[TX]},
		{"ChangedTimingIsAdoptedAtAStart", changedTimingIsAdoptedAtAStart[TX]},
		{"AbandonedRowIsRemoved", abandonedRowIsRemoved[TX]},
		{"LockedRowHoldsUpNoOtherSchedule", lockedRowHoldsUpNoOtherSchedule[TX]},
		{"RequestIsMadeOnceAndSentOnce", requestIsMadeOnceAndSentOnce[TX]},
		{"RequestSharesItsTransaction", requestSharesItsTransaction[TX]},
		{"RequestWithoutItsAuditIsNone", requestWithoutItsAuditIsNone[TX]},
	})
}

// schedules returns the schedules of a store, or skips the case.
func schedules[TX any](t testing.TB, store Store[TX]) scheduling.Store[TX] {
	t.Helper()
	db, ok := store.(scheduling.Store[TX])
	if !ok {
		t.Skip("the store keeps no schedules")
	}
	return db
}

// scheduleRows returns the rows by name, and the database's time.
func scheduleRows(t testing.TB, db admin.Schedules) (map[string]admin.Schedule, time.Time) {
	t.Helper()
	all, now, err := db.Schedules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]admin.Schedule{}
	for i, row := range all {
		if rows[row.Name] = row; i > 0 && all[i-1].Name >= row.Name {
			t.Errorf("schedules are listed as %v", all)
		}
	}
	return rows, now
}

// replaceSchedule replaces a row in a transaction, which it commits or rolls back.
func (s *fixture[TX]) replaceSchedule(old, replacement admin.Schedule, commit, want bool) {
	s.t.Helper()
	tx := s.begin()
	found, err := schedules(s.t, s.Store).ReplaceSchedule(context.Background(), tx, old, replacement)
	s.end(tx, commit && err == nil)
	if err != nil || found != want {
		s.t.Errorf("ReplaceSchedule of %+v by %+v = %v, %v, want %v", old, replacement, found, err, want)
	}
}

// scheduled runs schedules on stores, as of as many processes, until stop is called.
func (s *fixture[TX]) scheduled(stores []scheduling.Store[TX], outs []*outbox.Outbox[TX], all ...scheduling.Schedule) (stop func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i, store := range stores {
		scheduler, err := scheduling.New(store, outs[i], scheduling.Config{}, all...)
		if err != nil {
			s.t.Fatal(err)
		}
		wg.Go(func() {
			if err := scheduler.Run(ctx); err != nil {
				s.t.Errorf("Run = %v", err)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	s.t.Cleanup(stop)
	return stop
}

// ticks takes the messages of a schedule out of the outbox, and returns their ticks in order.
func (s *fixture[TX]) ticks(name string) (ticks []time.Time) {
	s.t.Helper()
	for _, row := range s.take(outbox.DefaultTransport) {
		rec := row.Record
		tick, err := time.Parse(time.RFC3339, rec.Headers[scheduling.TickHeader])
		if err != nil || rec.ID != scheduling.MessageID(name, tick) || rec.Headers[scheduling.NameHeader] != name {
			s.t.Errorf("the message %s has the headers %q, want id %s", rec.ID, rec.Headers, scheduling.MessageID(name, tick))
		}
		ticks = append(ticks, tick)
	}
	slices.SortFunc(ticks, time.Time.Compare)
	return ticks
}

func everySecond(t testing.TB, name string, missed scheduling.Missed) scheduling.Schedule {
	t.Helper()
	timing, err := scheduling.Every(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return scheduling.Schedule{Name: name, Timing: timing, Missed: missed, Message: func(time.Time) any { return order{"", 1} }}
}

// rowOf is the row of a schedule whose ticks are done up to a time.
func rowOf(s scheduling.Schedule, done time.Time) admin.Schedule {
	return admin.Schedule{Name: s.Name, Spec: s.Timing.String(), Missed: string(s.Missed), DoneUntil: done, NextTick: s.Timing.Next(done)}
}

func rowIsReplacedAsItWas[TX any](t *testing.T, s *fixture[TX]) {
	db := schedules(t, s.Store)
	if rows, now := scheduleRows(t, db); len(rows) != 0 || notNow(now) {
		t.Errorf("a new database has %v, and the time %v", rows, now)
	}
	at := time.Date(2026, 3, 29, 1, 2, 3, 456789000, time.UTC)
	first := admin.Schedule{Name: "b", Spec: "0 3 * * * Europe/Berlin", Missed: "skip", DoneUntil: at, NextTick: at.Add(time.Hour)}
	moved := first
	moved.DoneUntil, moved.LastTick, moved.Missed = at.Add(time.Microsecond), new(at.Add(-time.Hour)), "all"
	requested, later := moved, moved
	requested.RequestedAt, later.RequestedAt = &at, new(at.Add(time.Microsecond))
	for _, step := range []struct {
		old, replacement admin.Schedule
		commit, found    bool
		rows             []admin.Schedule
	}{
		{admin.Schedule{}, first, false, true, nil},
		{admin.Schedule{}, first, true, true, []admin.Schedule{first}},
		{admin.Schedule{}, moved, true, false, []admin.Schedule{first}},
		{admin.Schedule{Name: "a"}, moved, true, false, []admin.Schedule{first}},
		{admin.Schedule{Name: "b", Spec: first.Spec, DoneUntil: moved.DoneUntil}, moved, true, false, []admin.Schedule{first}},
		{admin.Schedule{Name: "b", Spec: "0 4 * * *", DoneUntil: at}, moved, true, false, []admin.Schedule{first}},
		{first, moved, false, true, []admin.Schedule{first}},
		{first, moved, true, true, []admin.Schedule{moved}},
		{first, moved, true, false, []admin.Schedule{moved}},
		{first, admin.Schedule{}, true, false, []admin.Schedule{moved}},
		{moved, requested, true, true, []admin.Schedule{requested}},
		{moved, first, true, false, []admin.Schedule{requested}}, // a tick that has read no request
		{later, moved, true, false, []admin.Schedule{requested}},
		{moved, admin.Schedule{}, true, false, []admin.Schedule{requested}},
		{requested, moved, false, true, []admin.Schedule{requested}},
		{requested, moved, true, true, []admin.Schedule{moved}},
		{requested, moved, true, false, []admin.Schedule{moved}},
		{moved, admin.Schedule{}, true, true, nil},
		{admin.Schedule{}, requested, true, true, []admin.Schedule{requested}},
		{requested, admin.Schedule{}, true, true, nil},
	} {
		s.replaceSchedule(step.old, step.replacement, step.commit, step.found)
		got, _, err := db.Schedules(t.Context())
		if diff := cmp.Diff(step.rows, append([]admin.Schedule(nil), got...)); diff != "" || err != nil {
			t.Errorf("after %+v (-want +got): %v\n%s", step, err, diff)
		}
	}
}

// The limits of package schedule fit each database.
func longestNameAndSpecAreKept[TX any](t *testing.T, s *fixture[TX]) {
	db := schedules(t, s.Store)
	one := everySecond(t, strings.Repeat("é", 95), scheduling.All)
	timing, err := scheduling.Cron(strings.Repeat("10,", 76)+"10,10 * * * *", "Europe/Berlin")
	if n := len(timing.String()); err != nil || len(one.Name) != 190 || n != 255 {
		t.Fatalf("a name of %d bytes and a timing of %d (%v), want 190 and 255", len(one.Name), n, err)
	}
	one.Timing = timing
	stop := s.scheduled([]scheduling.Store[TX]{db}, []*outbox.Outbox[TX]{s.outbox(outbox.Config{})}, one)
	await(t, "the row", func() bool {
		rows, _ := scheduleRows(t, db)
		return rows[one.Name].Spec == timing.String()
	})
	stop()
}

// Several processes share a backlog of missed ticks and the ticks of a few seconds.
func eachTickIsSentOnce[TX any](t *testing.T, s *fixture[TX]) {
	stores := s.relays(4)
	var dbs []scheduling.Store[TX]
	var outs []*outbox.Outbox[TX]
	for _, store := range stores {
		dbs, outs = append(dbs, schedules(t, store)), append(outs, newOutbox(t, store, outbox.Config{}))
	}
	one := everySecond(t, "fast", scheduling.All)
	_, start := scheduleRows(t, dbs[0])
	done := start.Add(-250 * time.Second)
	s.replaceSchedule(admin.Schedule{}, rowOf(one, done), true, true)
	stop := s.scheduled(dbs, outs, one)
	await(t, "the ticks of two seconds", func() bool {
		rows, _ := scheduleRows(t, dbs[0])
		return rows["fast"].DoneUntil.After(start.Add(2 * time.Second))
	})
	stop()
	rows, _ := scheduleRows(t, dbs[0])
	var want []time.Time
	for tick := one.Timing.Next(done); !tick.After(rows["fast"].DoneUntil); tick = one.Timing.Next(tick) {
		want = append(want, tick)
	}
	if diff := cmp.Diff(want, s.ticks("fast")); diff != "" {
		t.Errorf("ticks in the outbox (-want +got):\n%s", diff)
	}
	if last := rows["fast"].LastTick; last == nil || !last.Equal(want[len(want)-1]) || !rows["fast"].NextTick.Equal(one.Timing.Next(*last)) {
		t.Errorf("the row is %+v", rows["fast"])
	}
}

// A tick whose message cannot be dispatched stays due.
func tickSharesItsTransaction[TX any](t *testing.T, s *fixture[TX]) {
	db := schedules(t, s.Store)
	var calls atomic.Int64
	one := everySecond(t, "broken", scheduling.Latest)
	one.Message = func(time.Time) any {
		if calls.Add(1) < 3 {
			return "no message"
		}
		return order{"", 1}
	}
	_, now := scheduleRows(t, db)
	row := rowOf(one, now.Add(-time.Hour))
	s.replaceSchedule(admin.Schedule{}, row, true, true)
	s.scheduled([]scheduling.Store[TX]{db}, []*outbox.Outbox[TX]{s.outbox(outbox.Config{})}, one)
	await(t, "the second attempt", func() bool { return calls.Load() == 2 })
	if rows, _ := scheduleRows(t, db); !cmp.Equal(rows["broken"], row) {
		t.Errorf("without a message the row is %+v, want %+v", rows["broken"], row)
	}
	await(t, "the message", func() bool { return len(s.ticks("broken")) > 0 })
}

// readings counts the readings of rows.
type readings[TX any] struct {
	scheduling.Store[TX]
	n atomic.Int64
}

func (r *readings[TX]) Schedules(ctx context.Context) ([]admin.Schedule, time.Time, error) {
	all, now, err := r.Store.Schedules(ctx)
	r.n.Add(1)
	return all, now, err
}

// The row was moved by a clock that has been set back since, by an hour.
func clockThatGoesBackSendsNothingTwice[TX any](t *testing.T, s *fixture[TX]) {
	db := &readings[TX]{Store: schedules(t, s.Store)}
	one := everySecond(t, "back", scheduling.All)
	_, now := scheduleRows(t, db)
	row := rowOf(one, now.Add(time.Hour).Truncate(time.Second))
	s.replaceSchedule(admin.Schedule{}, row, true, true)
	before := db.n.Load()
	stop := s.scheduled([]scheduling.Store[TX]{db}, []*outbox.Outbox[TX]{s.outbox(outbox.Config{})}, one)
	await(t, "the start, and the first pass", func() bool { return db.n.Load() >= before+2 })
	stop()
	if rows, _ := scheduleRows(t, db); !cmp.Equal(rows["back"], row) {
		t.Errorf("the row is %+v, want %+v", rows["back"], row)
	}
	if ticks := s.ticks("back"); len(ticks) > 0 {
		t.Errorf("sent %v", ticks)
	}
}

// A new build has another timing. The old one, which runs on, does not send from then on, and
// does not give the row its own timing.
func changedTimingIsAdoptedAtAStart[TX any](t *testing.T, s *fixture[TX]) {
	db, out := schedules(t, s.Store), s.outbox(outbox.Config{})
	old := everySecond(t, "changed", scheduling.All)
	var late atomic.Bool
	var sentLate atomic.Int64
	old.Message = func(time.Time) any {
		if late.Load() {
			sentLate.Add(1)
		}
		return order{"", 1}
	}
	s.scheduled([]scheduling.Store[TX]{db}, []*outbox.Outbox[TX]{out}, old)
	await(t, "a tick of the old build", func() bool { return len(s.ticks("changed")) > 0 })
	changed := everySecond(t, "changed", scheduling.All)
	changed.Timing, _ = scheduling.Every(2 * time.Second)
	stop := s.scheduled([]scheduling.Store[TX]{db}, []*outbox.Outbox[TX]{out}, changed)
	await(t, "the new timing", func() bool {
		rows, _ := scheduleRows(t, db)
		return rows["changed"].Spec == changed.Timing.String()
	})
	late.Store(true)
	adopted, _ := scheduleRows(t, db)
	s.ticks("changed")
	await(t, "two ticks of the new build", func() bool {
		rows, _ := scheduleRows(t, db)
		return rows["changed"].DoneUntil.After(adopted["changed"].DoneUntil.Add(4 * time.Second))
	})
	stop()
	for _, tick := range s.ticks("changed") {
		if tick.Unix()%2 != 0 {
			t.Errorf("sent %v, which the new timing does not have", tick)
		}
	}
	if n := sentLate.Load(); n > 1 { // one may have been under way
		t.Errorf("the old build has begun %d messages since", n)
	}
}

// A row without a process is removed when its next tick is 30 days overdue, one of the
// starting process itself is not.
func abandonedRowIsRemoved[TX any](t *testing.T, s *fixture[TX]) {
	db := schedules(t, s.Store)
	_, now := scheduleRows(t, db)
	mine := everySecond(t, "mine", scheduling.Latest)
	const day = 24 * time.Hour
	for name, ago := range map[string]time.Duration{"mine": 31 * day, "gone": 31 * day, "paused": 29 * day} {
		row := rowOf(mine, now.Add(-ago))
		row.Name = name
		s.replaceSchedule(admin.Schedule{}, row, true, true)
	}
	stop := s.scheduled([]scheduling.Store[TX]{db}, []*outbox.Outbox[TX]{s.outbox(outbox.Config{})}, mine)
	await(t, "a tick and the removal", func() bool {
		rows, _ := scheduleRows(t, db)
		return rows["mine"].LastTick != nil && rows["gone"].Name == ""
	})
	stop()
	rows, _ := scheduleRows(t, db)
	if rows["paused"].Name == "" || rows["mine"].LastTick.Before(now.Add(-time.Minute)) {
		t.Errorf("the rows are %+v", rows)
	}
}
