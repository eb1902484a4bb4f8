package schedule

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
)

// A rowStore keeps the rows of schedules beside a database in memory, by whose transactions
// they change.
type rowStore struct {
	*memory.DB
	mu    sync.Mutex
	rows  map[string]admin.Schedule // guarded by mu
	reads int                       // guarded by mu
	read  func()                    // runs behind a reading; may be nil
}

func newRowStore() *rowStore { return &rowStore{DB: memory.NewDB(), rows: map[string]admin.Schedule{}} }

func (s *rowStore) Schedules(context.Context) (all []admin.Schedule, now time.Time, err error) {
	s.mu.Lock()
	for _, row := range s.rows {
		all = append(all, row)
	}
	s.reads++
	s.mu.Unlock()
	now = time.Now().UTC()
	if s.read != nil {
		s.read()
	}
	return all, now, nil
}

func (s *rowStore) ReplaceSchedule(_ context.Context, tx *memory.Tx, old, replacement admin.Schedule) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, ok := s.rows[old.Name]
	if ok != (old.Name != "") || is.Spec != old.Spec || !is.DoneUntil.Equal(old.DoneUntil) || !cmp.Equal(is.RequestedAt, old.RequestedAt) {
		return false, nil
	}
	tx.OnCommit(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rows[replacement.Name] = replacement
	})
	return true, nil
}

func (s *rowStore) TriggerSchedule(_ context.Context, name string) (time.Time, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	row := s.rows[name]
	if row.RequestedAt != nil {
		return *row.RequestedAt, false, nil
	}
	row.RequestedAt = new(time.Now().UTC())
	s.rows[name] = row
	return *row.RequestedAt, true, nil
}

// trigger requests a message of the schedule "s", and returns the time of the request.
func (s *rowStore) trigger(t *testing.T) time.Time {
	t.Helper()
	at, added, err := s.TriggerSchedule(t.Context(), "s")
	if !added || err != nil {
		t.Errorf("TriggerSchedule at %v = %v, %v, %v", time.Now().UTC(), at, added, err)
	}
	return at
}

func (s *rowStore) row() admin.Schedule {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows["s"]
}

type tickMessage struct{ Tick time.Time }

func (tickMessage) MessageName() string { return "tick" }

// run runs a schedule "s" by so many processes until the test ends.
func (s *rowStore) run(t *testing.T, processes int, log *slog.Logger, timing Timing, message func(time.Time) any) {
	t.Helper()
	for range processes {
		stop := start(t, s, log, Schedule{Name: "s", Timing: timing, Message: message})
		t.Cleanup(func() { _ = stop() })
	}
}

// A scheduled is a store of the outbox with rows of schedules.
type scheduled interface {
	outbox.Writer[*memory.Tx]
	Store[*memory.Tx]
}

// start runs a scheduler until stop, which returns the result of Run.
func start(t *testing.T, s scheduled, log *slog.Logger, all ...Schedule) (stop func() error) {
	t.Helper()
	out, err := outbox.New(s, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	scheduler, err := New(s, out, Config{Log: log}, all...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- scheduler.Run(ctx) }()
	return func() error { cancel(); return <-ended }
}

// sent describes the messages in the outbox, "tick TIME" or "request TIME", in order.
func (s *rowStore) sent(t *testing.T) (all []string) {
	t.Helper()
	for _, rec := range s.Pending("") {
		tick, err := time.Parse(time.RFC3339, rec.Headers[TickHeader])
		text, want := "tick ", MessageID("s", tick)
		if requested := rec.Headers[RequestHeader]; requested != "" {
			at, _ := time.Parse(time.RFC3339Nano, requested)
			text, want = "request ", RequestID("s", at)
			if !tick.Equal(at.Truncate(time.Second)) {
				t.Errorf("the request of %v has the tick %v", at, tick)
			}
		}
		if body := fmt.Sprintf(`{"Tick":%q}`, tick.Format(time.RFC3339)); err != nil || rec.ID != want || rec.Headers[NameHeader] != "s" || string(rec.Body) != body {
			t.Errorf("message %s, headers %q, body %s, want id %s and body %s", rec.ID, rec.Headers, rec.Body, want, body)
		}
		all = append(all, text+tick.Format(time.TimeOnly))
	}
	return all
}

func ofTick(tick time.Time) any { return tickMessage{tick} }

func every(t testing.TB, d time.Duration) Timing {
	t.Helper()
	timing, err := Every(d)
	if err != nil {
		t.Fatal(err)
	}
	return timing
}

// Virtual time begins at midnight, so a schedule of each hour ticks an hour later.
func TestRequestIsSentWithinFiveSecondsAndChangesNoTick(t *testing.T) {
	for _, processes := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			s := newRowStore()
			s.run(t, processes, nil, every(t, time.Hour), ofTick)
			time.Sleep(20*time.Minute + 1234*time.Millisecond)
			before := s.row()
			at := s.trigger(t)
			if same, added, err := s.TriggerSchedule(t.Context(), "s"); added || err != nil || !same.Equal(at) {
				t.Errorf("a second trigger = %v, %v, %v, want %v", same, added, err, at)
			}
			time.Sleep(5 * time.Second)
			if diff := cmp.Diff([]string{"request 00:20:01"}, s.sent(t)); diff != "" {
				t.Errorf("after 5s (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, s.row()); diff != "" {
				t.Errorf("the row (-before +after):\n%s", diff)
			}
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 100*time.Millisecond)))
			s.trigger(t) // in the second of a tick
			time.Sleep(time.Hour)
			if diff := cmp.Diff([]string{"request 00:20:01", "tick 01:00:00", "request 01:00:00", "tick 02:00:00"}, s.sent(t)); diff != "" {
				t.Errorf("after two hours (-want +got):\n%s", diff)
			}
			if row := s.row(); !row.LastTick.Equal(row.DoneUntil) || row.NextTick.Sub(*row.LastTick) != time.Hour {
				t.Errorf("the row is %+v", row)
			}
		})
	}
}

// Each pass of a schedule of 10 s meets a request that was made behind its reading.
func TestRequestBetweenReadingAndTickIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRowStore()
		requested := map[time.Time]bool{} // by the tick that was due
		s.read = func() {
			if row := s.row(); row.Name != "" && !row.NextTick.After(time.Now()) && !requested[row.NextTick] {
				requested[row.NextTick] = true
				s.trigger(t)
			}
		}
		s.run(t, 1, nil, every(t, 10*time.Second), ofTick)
		time.Sleep(32 * time.Second)
		want := []string{"request 00:00:10", "tick 00:00:10", "request 00:00:20", "tick 00:00:20", "request 00:00:30", "tick 00:00:30"}
		if diff := cmp.Diff(want, s.sent(t)); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
	})
}

// The message of a request may be one that its schedule cannot make.
func TestRequestThatFailsHoldsUpNoTickAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRowStore()
		var log bytes.Buffer
		var mended atomic.Bool
		s.run(t, 1, slog.New(slog.NewTextHandler(&log, nil)), every(t, time.Minute), func(tick time.Time) any {
			if tick.Second() != 0 && !mended.Load() {
				return "no message"
			}
			return tickMessage{tick}
		})
		time.Sleep(30 * time.Second)
		requested := s.trigger(t)
		time.Sleep(2 * time.Minute)
		if diff := cmp.Diff([]string{"tick 00:01:00", "tick 00:02:00"}, s.sent(t)); diff != "" {
			t.Errorf("beside a request that fails (-want +got):\n%s", diff)
		}
		row := s.row()
		if row.RequestedAt == nil || !row.RequestedAt.Equal(requested) || row.Overdue(time.Now()) != 2*time.Minute || row.Overdue(requested.Add(9*time.Second)) != 0 {
			t.Errorf("the row is %+v, overdue for %v", row, row.Overdue(time.Now()))
		}
		mended.Store(true)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if sent := s.sent(t); sent[len(sent)-1] != "request 00:00:30" {
			t.Errorf("the request is not sent when it can be: %v", sent)
		}
		if n := strings.Count(log.String(), "schedule not sent, will retry"); n != 1 || !strings.Contains(log.String(), "requested message sent") {
			t.Errorf("%d warnings:\n%s", n, &log)
		}
	})
}

// A request waits for a process with the timing of the row: a new build takes it over.
func TestRequestWaitsForAProcessAndOutlivesAnotherTiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRowStore()
		old := Schedule{Name: "s", Timing: every(t, time.Hour)}
		now := time.Now().UTC()
		s.rows["s"] = admin.Schedule{Name: "s", Spec: old.Timing.String(), Missed: "latest", DoneUntil: now, NextTick: old.Timing.Next(now)}
		s.trigger(t)
		time.Sleep(10 * time.Minute)
		s.run(t, 2, nil, every(t, 2*time.Hour), ofTick)
		time.Sleep(time.Second)
		if diff := cmp.Diff([]string{"request 00:00:00"}, s.sent(t)); diff != "" || s.row().RequestedAt != nil {
			t.Errorf("the row is %+v (-want +got):\n%s", s.row(), diff)
		}
	})
}

// The price of a request's five seconds: 12 readings a minute, whatever the number of schedules.
func TestIdleSchedulerReadsTwelveTimesAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRowStore()
		s.run(t, 1, nil, every(t, 24*time.Hour), ofTick)
		time.Sleep(time.Minute + time.Second)
		s.mu.Lock()
		before := s.reads
		s.mu.Unlock()
		time.Sleep(10 * time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := s.reads - before; n != 120 {
			t.Errorf("%d readings in ten minutes, want 120", n)
		}
	})
}

func TestIDsOfRequestsAreNoneOfTicks(t *testing.T) {
	at := time.Date(2026, 11, 26, 1, 30, 0, 0, time.UTC)
	ids := map[waybill.MessageID]bool{}
	for _, id := range []waybill.MessageID{MessageID("s", at), RequestID("s", at), RequestID("s", at.Add(time.Microsecond)), RequestID("t", at)} {
		ids[id] = true
	}
	if len(ids) != 4 || RequestID("s", at) != RequestID("s", at.In(time.FixedZone("", 3600))) {
		t.Errorf("the ids are %v", ids)
	}
}

func TestPanicOfAMessageEndsNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRowStore()
		var log bytes.Buffer
		s.run(t, 1, slog.New(slog.NewTextHandler(&log, nil)), every(t, time.Minute), func(tick time.Time) any {
			if tick.Minute() == 1 {
				panic("no such customer")
			}
			return tickMessage{tick}
		})
		time.Sleep(2*time.Minute + 30*time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"tick 00:02:00"}, s.sent(t)); diff != "" {
			t.Errorf("beside a tick whose message panics (-want +got):\n%s", diff)
		}
		if text := log.String(); !strings.Contains(text, "no such customer") || !strings.Contains(text, "stack=") {
			t.Errorf("the log has no panic:\n%s", text)
		}
	})
}

// A frozenStore is a database that answers no transaction any more.
type frozenStore struct {
	*rowStore
	frozen atomic.Bool
}

// Schedules fails in a context that has ended, as a database does.
func (s *frozenStore) Schedules(ctx context.Context) ([]admin.Schedule, time.Time, error) {
	if err := ctx.Err(); err != nil {
		return nil, time.Time{}, err
	}
	return s.rowStore.Schedules(ctx)
}

func (s *frozenStore) ReplaceSchedule(ctx context.Context, tx *memory.Tx, old, replacement admin.Schedule) (bool, error) {
	if s.frozen.Load() {
		<-ctx.Done()
		return false, ctx.Err()
	}
	return s.rowStore.ReplaceSchedule(ctx, tx, old, replacement)
}

// A service manager kills a process that does not end.
func TestStopWaitsForOneTransactionOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &frozenStore{rowStore: newRowStore()}
		var all []Schedule
		for n := range 20 {
			all = append(all, Schedule{Name: fmt.Sprint("s", n), Timing: every(t, time.Minute), Message: ofTick})
		}
		stop := start(t, s, nil, all...)
		time.Sleep(30 * time.Second)
		s.frozen.Store(true)
		time.Sleep(31 * time.Second) // the first of twenty transactions has begun
		stopped := time.Now()
		if err := stop(); err != nil || time.Since(stopped) > sendTimeout {
			t.Errorf("Run = %v, %v after its context, want nil within %v", err, time.Since(stopped), sendTimeout)
		}
	})
}

// A program that runs its schedules while it leads may lead again.
func TestSecondRunSendsAllSchedules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &frozenStore{rowStore: newRowStore()}
		out, err := outbox.New(s, outbox.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var all []Schedule
		for n := range 20 {
			all = append(all, Schedule{Name: fmt.Sprint("s", n), Timing: every(t, time.Minute), Message: ofTick})
		}
		var log bytes.Buffer
		scheduler, err := New(s, out, Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, all...)
		if err != nil {
			t.Fatal(err)
		}
		run := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := scheduler.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
		}
		run(30 * time.Second) // they are adopted
		s.frozen.Store(true)
		run(31 * time.Second) // some transactions have begun, the others wait for a slot
		s.frozen.Store(false)
		run(time.Minute)
		if n := len(s.Pending("")); n != 20*2 {
			t.Errorf("%d messages sent, want two ticks of 20 schedules", n)
		}
		if strings.Contains(log.String(), "sends again") {
			t.Errorf("the second Run ends a problem of the first:\n%s", &log)
		}
	})
}

// A distantStore names another port in each of its errors.
type distantStore struct {
	*rowStore
	away atomic.Int64
}

func (s *distantStore) Schedules(ctx context.Context) ([]admin.Schedule, time.Time, error) {
	if n := s.away.Load(); n > 0 {
		s.away.Add(1)
		return nil, time.Time{}, fmt.Errorf("%w: read tcp 10.0.0.1:%d: connection reset by peer", waybill.ErrUnavailable, n)
	}
	return s.rowStore.Schedules(ctx)
}

func TestOutageIsOneWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &distantStore{rowStore: newRowStore()}
		var log bytes.Buffer
		stop := start(t, s, slog.New(slog.NewTextHandler(&log, nil)), Schedule{Name: "s", Timing: every(t, time.Minute), Message: ofTick})
		time.Sleep(30 * time.Second)
		s.away.Store(1)
		time.Sleep(time.Minute)
		tries := s.away.Load() - 1
		s.away.Store(0)
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "will retry"); tries < 10 || n != 1 || !strings.Contains(log.String(), "sends again") || strings.Contains(log.String(), `schedule=""`) {
			t.Errorf("%d warnings of %d tries, want one, a line when it is over, and no schedule without a name:\n%s", n, tries, log.String())
		}
	})
}
