package waytest

import (
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	scheduling "github.com/waybill-go/waybill/schedule"
)

// nightly is a schedule whose next tick is hours away.
func nightly(t testing.TB, now time.Time) (scheduling.Schedule, admin.Schedule) {
	t.Helper()
	one := everySecond(t, "nightly", scheduling.Latest)
	timing, err := scheduling.Every(365 * 24 * time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	one.Timing = timing
	return one, rowOf(one, now.Truncate(time.Microsecond))
}

// trigger requests a message of a schedule, and returns the time of the request.
func (s *fixture[TX]) trigger(db admin.Schedules, name string, wantAdded bool) time.Time {
	s.t.Helper()
	at, added, err := db.TriggerSchedule(s.t.Context(), name)
	if err != nil || added != wantAdded || notNow(at) || at.Location() != time.UTC {
		s.t.Errorf("TriggerSchedule(%q) = %v, %v, %v, want added %v", name, at, added, err, wantAdded)
	}
	return at
}

// A pending request is not doubled. Four processes that see it at once send it once; the ticks
// stay.
func requestIsMadeOnceAndSentOnce[TX any](t *testing.T, s *fixture[TX]) {
	stores := s.relays(4)
	var dbs []scheduling.Store[TX]
	var outs []*outbox.Outbox[TX]
	for _, store := range stores {
		dbs, outs = append(dbs, schedules(t, store)), append(outs, newOutbox(t, store, outbox.Config{}))
	}
	db := dbs[0]
	if at, added, err := db.TriggerSchedule(t.Context(), "nightly"); added || !errors.Is(err, waybill.ErrNotFound) {
		t.Errorf("TriggerSchedule of an unknown name = %v, %v, %v", at, added, err)
	}
	_, now := scheduleRows(t, db)
	one, row := nightly(t, now)
	other := row
	other.Name = "other"
	s.replaceSchedule(admin.Schedule{}, row, true, true)
	s.replaceSchedule(admin.Schedule{}, other, true, true)
	requested := s.trigger(db, "nightly", true)
	if again := s.trigger(dbs[1], "nightly", false); !again.Equal(requested) {
		t.Errorf("the request of %v is now of %v", requested, again)
	}
	pending := row
	pending.RequestedAt = &requested
	if rows, _ := scheduleRows(t, db); !cmp.Equal(rows, map[string]admin.Schedule{"nightly": pending, "other": other}) {
		t.Errorf("the rows are %+v, want the request of %v", rows, requested)
	}
	stop := s.scheduled(dbs, outs, one)
	await(t, "the message", func() bool {
		rows, _ := scheduleRows(t, db)
		return rows["nightly"].RequestedAt == nil
	})
	s.wantRequests("nightly", requested)
	second := s.trigger(dbs[2], "nightly", true)
	await(t, "the message of a second request", func() bool {
		rows, _ := scheduleRows(t, db)
		return rows["nightly"].RequestedAt == nil
	})
	stop()
	s.wantRequests("nightly", second)
	if rows, _ := scheduleRows(t, db); !cmp.Equal(rows["nightly"], row) {
		t.Errorf("the row is %+v, want %+v", rows["nightly"], row)
	}
	s.wantTriggers(2, `{"name":"nightly"}`)
}

// wantRequests takes the messages out of the outbox, which are to be those of requests.
func (s *fixture[TX]) wantRequests(name string, at ...time.Time) {
	s.t.Helper()
	want, got := map[waybill.MessageID]int{}, map[waybill.MessageID]int{}
	for _, requested := range at {
		want[scheduling.RequestID(name, requested)]++
	}
	for _, row := range s.take(outbox.DefaultTransport) {
		h := row.Record.Headers
		requested, err := time.Parse(time.RFC3339Nano, h[scheduling.RequestHeader])
		if err != nil || h[scheduling.NameHeader] != name || h[scheduling.TickHeader] != requested.Truncate(time.Second).Format(time.RFC3339) {
			s.t.Errorf("the message of a request has the headers %q", h)
		}
		got[row.Record.ID]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("messages by id (-want +got):\n%s", diff)
	}
}

// wantTriggers fails unless the audit has so many entries, all of triggers with a filter.
func (s *fixture[TX]) wantTriggers(n int, filter string) {
	s.t.Helper()
	letters, ok := s.Store.(admin.DeadLetters)
	if !ok {
		return
	}
	entries, err := letters.Audit(s.t.Context(), 0, 0)
	try(s.t, "Audit", err)
	for _, e := range entries {
		var got, want any
		if json.Unmarshal(e.Filter, &got) != nil || json.Unmarshal([]byte(filter), &want) != nil || !cmp.Equal(got, want) || e.Action != "schedules trigger" || e.Messages != 1 || e.Actor != admin.Actor() {
			s.t.Errorf("the audit has %s %s by %s, of %d messages", e.Action, e.Filter, e.Actor, e.Messages)
		}
	}
	if len(entries) != n {
		s.t.Errorf("the audit has %d entries, want %d", len(entries), n)
	}
}

// A request whose message cannot be dispatched waits, and holds up no tick.
func requestSharesItsTransaction[TX any](t *testing.T, s *fixture[TX]) {
	db := schedules(t, s.Store)
	var requested atomic.Int64 // in seconds
	var mended atomic.Bool
	one := everySecond(t, "broken", scheduling.All)
	var calls atomic.Int64
	one.Message = func(tick time.Time) any {
		if tick.Unix() == requested.Load() && !mended.Load() {
			calls.Add(1)
			return "no message"
		}
		return order{"", 1}
	}
	_, now := scheduleRows(t, db)
	done := now.Add(time.Second).Truncate(time.Second) // the ticks begin two seconds later
	s.replaceSchedule(admin.Schedule{}, rowOf(one, done), true, true)
	at := s.trigger(db, "broken", true)
	requested.Store(at.Unix())
	stop := s.scheduled([]scheduling.Store[TX]{db}, []*outbox.Outbox[TX]{s.outbox(outbox.Config{})}, one)
	await(t, "two ticks beside the request", func() bool {
		rows, _ := scheduleRows(t, db)
		return rows["broken"].DoneUntil.After(done.Add(time.Second)) && calls.Load() > 1
	})
	if rows, _ := scheduleRows(t, db); rows["broken"].RequestedAt == nil || !rows["broken"].RequestedAt.Equal(at) {
		t.Errorf("the row is %+v, want the request of %v", rows["broken"], at)
	}
	mended.Store(true)
	await(t, "the message of the request", func() bool {
		rows, _ := scheduleRows(t, db)
		return rows["broken"].RequestedAt == nil
	})
	stop()
	ids := map[waybill.MessageID]int{}
	for _, row := range s.take(outbox.DefaultTransport) {
		ids[row.Record.ID]++
	}
	rows, _ := scheduleRows(t, db)
	want := map[waybill.MessageID]int{scheduling.RequestID("broken", at): 1}
	for tick := one.Timing.Next(done); !tick.After(rows["broken"].DoneUntil); tick = one.Timing.Next(tick) {
		want[scheduling.MessageID("broken", tick)] = 1
	}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("messages by id (-want +got):\n%s", diff)
	}
}

// The audit of a request is in its transaction: a server refuses a filter that is not JSON.
func requestWithoutItsAuditIsNone[TX any](t *testing.T, s *fixture[TX]) {
	db := schedules(t, s.Store)
	_, now := scheduleRows(t, db)
	_, row := nightly(t, now)
	s.replaceSchedule(admin.Schedule{}, row, true, true)
	_, added, err := db.TriggerSchedule(admin.WithAction(t.Context(), admin.Action{Actor: "ann", Filter: json.RawMessage("{")}), "nightly")
	if err == nil {
		letters, ok := s.Store.(admin.DeadLetters)
		if !ok {
			t.Skip("the store keeps no audit")
		}
		if entries, err := letters.Audit(t.Context(), 0, 0); err != nil || len(entries) != 1 {
			t.Errorf("the audit of the request is %v, %v", entries, err)
		}
		t.Skip("the audit of this database takes any text")
	}
	if rows, _ := scheduleRows(t, db); added || !cmp.Equal(rows["nightly"], row) {
		t.Errorf("with an audit that is refused (%v) the row is %+v, want %+v", err, rows["nightly"], row)
	}
	s.trigger(db, "nightly", true)
}
