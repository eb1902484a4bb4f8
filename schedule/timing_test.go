package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill/outbox"
)

func mustCron(t testing.TB, expression, zone string) Timing {
	t.Helper()
	timing, err := Cron(expression, zone)
	if err != nil {
		t.Fatal(err)
	}
	return timing
}

// clocks are ticks as the clocks of the timing show them, with their offsets.
func clocks(t Timing, ticks []time.Time) (shown []string) {
	zone := t.zone
	if zone == nil {
		zone = time.UTC
	}
	for _, tick := range ticks {
		shown = append(shown, tick.In(zone).Format("02 15:04 -0700"))
	}
	return shown
}

// Berlin skips 02:00 to 03:00 on 29 March 2026, and repeats it on 25 October. Lord Howe moves
// by half an hour. Santiago skips midnight. Samoa has no 30 December 2011.
func TestTicksWhereClocksAreChanged(t *testing.T) {
	for _, tt := range []struct {
		name, cron, zone, from, to string
		want                       []string
	}{
		{"a skipped reading ticks at the change", "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z", []string{"29 03:00 +02", "30 02:30 +02"}},
		{"several skipped readings tick once", "*/15 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z", []string{"29 03:00 +02", "29 03:15 +02", "29 03:30 +02", "29 03:45 +02"}},
		{"a repeated reading ticks at the first", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z", []string{"25 02:30 +02", "26 02:30 +01"}},
		{"minutes of a repeated hour tick once", "*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z", []string{"25 02:00 +02", "25 02:30 +02"}},
		{"a range of hours is readings", "0 1-3 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z", []string{"25 01:00 +02", "25 02:00 +02", "25 03:00 +01"}},
		{"every hour ticks in the repeated one", "0 * * * *", "Europe/Berlin", "2026-10-24T22:30:00Z", "2026-10-25T02:30:00Z", []string{"25 01:00 +02", "25 02:00 +02", "25 02:00 +01", "25 03:00 +01"}},
		{"every hour ticks in no skipped one", "0 * * * *", "Europe/Berlin", "2026-03-28T23:30:00Z", "2026-03-29T02:30:00Z", []string{"29 01:00 +01", "29 03:00 +02", "29 04:00 +02"}},
		{"a change of half an hour, forward", "20,50 * * * *", "Australia/Lord_Howe", "2026-10-03T14:30:00Z", "2026-10-03T17:00:00Z", []string{"04 01:20 +1030", "04 01:50 +1030", "04 02:50 +11", "04 03:20 +11", "04 03:50 +11"}},
		{"a change of half an hour, back", "20,50 * * * *", "Australia/Lord_Howe", "2026-04-04T14:00:00Z", "2026-04-04T16:00:00Z", []string{"05 01:20 +11", "05 01:50 +11", "05 01:50 +1030", "05 02:20 +1030"}},
		{"a skipped midnight", "0 0 * * *", "America/Santiago", "2026-09-05T05:00:00Z", "2026-09-07T05:00:00Z", []string{"06 01:00 -03", "07 00:00 -03"}},
		{"a skipped day", "0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z", "2011-12-31T12:00:00Z", []string{"29 12:00 -10", "31 00:00 +14", "31 12:00 +14"}},
		{"no change in UTC", "30 2 * * *", "", "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z", []string{"29 02:30 +00", "30 02:30 +00"}},
		{"days of the week and the month are alternatives", "0 9 13 * 5", "UTC", "2026-11-01T00:00:00Z", "2026-11-20T12:00:00Z", []string{"06 09:00 +00", "13 09:00 +00", "20 09:00 +00"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			from, err := time.Parse(time.RFC3339, tt.from)
			if err != nil {
				t.Fatal(err)
			}
			to, err := time.Parse(time.RFC3339, tt.to)
			if err != nil {
				t.Fatal(err)
			}
			timing := mustCron(t, tt.cron, tt.zone)
			got := clocks(timing, between(timing, from, to))
			for i := range got {
				got[i] = strings.TrimSuffix(got[i], "00") // of a whole hour
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s in %q (-want +got):\n%s", tt.cron, tt.zone, diff)
			}
		})
	}
}

// In crontab(5) 7 is Sunday, too.
func TestSevenIsSunday(t *testing.T) {
	sunday := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	for days, want := range map[string]string{
		"7": "7", "0": "7", "7-7": "7", "7/2": "7", "3,7": "37", "5-7": "567", "1-7": "1234567", "0-7": "1234567", "mon-7": "1234567",
		"1-7/2": "1357", "2-7/2": "246", "5-7/1,2": "2567", "6-7": "67", "1-5": "12345",
	} {
		timing, got := mustCron(t, "0 3 * * "+days, ""), ""
		for day := 1; day <= 7; day++ {
			if midnight := sunday.AddDate(0, 0, day); timing.Next(midnight).Sub(midnight) < 24*time.Hour {
				got += fmt.Sprint(day)
			}
		}
		if got != want || timing.String() != "0 3 * * "+days {
			t.Errorf("%s ticks on the days %s, want %s", timing, got, want)
		}
	}
}

func TestIntervalsAreMultiplesSince1970(t *testing.T) {
	for _, tt := range []struct {
		every       time.Duration
		after, want string
	}{
		{10 * time.Minute, "2026-01-01T12:34:56Z", "2026-01-01T12:40:00Z"},
		{10 * time.Minute, "2026-01-01T12:40:00Z", "2026-01-01T12:50:00Z"},
		{10 * time.Minute, "2026-01-01T12:39:59.999999Z", "2026-01-01T12:40:00Z"},
		{time.Second, "2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:01Z"},
		{7 * time.Second, "1970-01-01T00:00:00Z", "1970-01-01T00:00:07Z"},
		{7 * time.Second, "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z"},
		{7 * 24 * time.Hour, "2026-01-01T00:00:00Z", "2026-01-08T00:00:00Z"},
	} {
		timing, err := Every(tt.every)
		if err != nil {
			t.Fatal(err)
		}
		after, _ := time.Parse(time.RFC3339Nano, tt.after)
		if got := timing.Next(after).Format(time.RFC3339); got != tt.want {
			t.Errorf("every %v after %s = %s, want %s", tt.every, tt.after, got, tt.want)
		}
	}
}

func TestTimingsAreRefused(t *testing.T) {
	for _, tt := range []struct{ cron, zone, want string }{
		{"", "", "five fields"},
		{"0 3 * *", "", "five fields"},
		{"0 0 3 * * *", "", "five fields"},
		{"@daily", "", "five fields"},
		{"TZ=Europe/Berlin 0 3 * *", "", "five fields"},
		{"61 3 * * *", "", "above maximum"},
		{"0 3 * * 8", "", "above maximum"},
		{"0 3 * * 7-8", "", "above maximum"},
		{"0 3 * * 8-7", "", "above maximum"},
		{"0 3 * * 7/0", "", "7/0"},
		{"0 3 * * mon-7/2", "", "above maximum"},
		{"0 3 * * 1-7/x", "", "failed to parse"},
		{"0 3 * * bad-7", "", "failed to parse"},
		{"0 3 30 2 *", "", "no such day"},
		{strings.Repeat("10,", 83) + "1 * * * *", "Europe/Berlin", "it has 272 bytes with its time zone, the limit is 255: write ranges"},
		{"0\x00 3 * * *", "", "failed to parse"},
		{"0 3 * * *", "UTC\x00", "unknown time zone"},
		{"0 3 * * *", "Local", `unknown time zone "Local"`},
		{"0 3 * * *", "Berlin", `unknown time zone "Berlin"`},
	} {
		if _, err := Cron(tt.cron, tt.zone); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Cron(%q, %q) = %v, want an error with %q", tt.cron, tt.zone, err, tt.want)
		}
	}
	for _, every := range []time.Duration{0, -time.Hour, time.Millisecond, 1500 * time.Millisecond} {
		if _, err := Every(every); err == nil {
			t.Errorf("Every(%v) is accepted", every)
		}
	}
	if leap := mustCron(t, "0 3 29 2 *", ""); leap.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).Year() != 2028 {
		t.Error("29 February does not tick in 2028")
	}
}

func TestSchedulesAreRefused(t *testing.T) {
	good := Schedule{Name: "nightly", Timing: mustCron(t, "0 3 * * *", ""), Message: func(time.Time) any { return nil }}
	named := func(name string) []Schedule { return []Schedule{{name, good.Timing, "", good.Message}} }
	for want, schedules := range map[string][]Schedule{
		`the name "" has 0 bytes, want 1 to 190`:                                   named(""),
		`has 191 bytes, want 1 to 190`:                                             named(strings.Repeat("n", 191)),
		`the name "a\nb" has a control character or is not UTF-8: write letters`:   named("a\nb"),
		`the name "a\x00b" has a control character or is not UTF-8: write letters`: named("a\x00b"),
		`the name "a\u0085" has a control character`:                               named("a\u0085"),
		`the name "a\xff" has a control character or is not UTF-8`:                 named("a\xff"),
		`two schedules are named "nightly"`:                                        {good, good},
		`"x" needs a Timing and a Message`:                                         {{Name: "x"}},
		`"x": the policy "some" is none of latest, skip and all`:                   {{"x", good.Timing, "some", good.Message}},
	} {
		if _, err := New(unusedStore{}, new(outbox.Outbox[int]), Config{}, schedules...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want an error with %s", err, want)
		}
	}
	if _, err := New(unusedStore{}, new(outbox.Outbox[int]), Config{}, named("Bericht für Mönche")...); err != nil {
		t.Error(err)
	}
}

// unusedStore is a Store that is not called.
type unusedStore struct{ Store[int] }

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kathmandu", "Pacific/Apia", "Africa/Casablanca", "Antarctica/Troll"}

// drawTiming draws timings that tick a few times a day up to every few minutes.
func drawTiming(t *rapid.T) Timing {
	if rapid.Bool().Draw(t, "interval") {
		timing, err := Every(time.Duration(rapid.IntRange(60, 100_000).Draw(t, "seconds")) * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		return timing
	}
	minute := rapid.SampledFrom([]string{"0", "*/20", "30", "15,45", "7-9"}).Draw(t, "minute")
	hour := rapid.SampledFrom([]string{"*", "2", "0", "*/3", "0-4", "23"}).Draw(t, "hour")
	day := rapid.SampledFrom([]string{"* * *", "* * 0", "1,15 * *", "* 3,10 6"}).Draw(t, "day")
	timing, err := Cron(minute+" "+hour+" "+day, rapid.SampledFrom(zones).Draw(t, "zone"))
	if err != nil {
		t.Fatal(err)
	}
	return timing
}

func drawTime(t *rapid.T) time.Time {
	const from, to = 1_293_840_000, 1_893_456_000 // 2011 to 2030
	return time.Unix(int64(rapid.IntRange(from, to).Draw(t, "time")), int64(rapid.IntRange(0, 999_999).Draw(t, "micros"))*1000).UTC()
}

// The ticks of a time are found minute by minute, from the definition alone: with "*" for the
// hour each minute that matches; otherwise the first minute that shows a reading, or the first
// after a change of the clocks that skips it.
func ticksByDefinition(t Timing, after, until time.Time) (ticks []time.Time) {
	matches := func(r time.Time) bool { return t.cron.Next(r.Add(-time.Second)).Equal(r) }
	for at := after.Truncate(time.Minute).Add(time.Minute); !at.After(until); at = at.Add(time.Minute) {
		shown := reading(at.In(t.zone))
		found := matches(shown)
		if t.cron.Hour&allHours == 0 {
			latest := time.Time{} // the latest reading that was shown before
			for back := time.Duration(0); back <= 2*time.Hour; back += time.Minute {
				if r := reading(at.Add(-time.Minute - back).In(t.zone)); r.After(latest) {
					latest = r
				}
			}
			found = false
			for r := latest.Add(time.Minute); !r.After(shown); r = r.Add(time.Minute) {
				found = found || matches(r)
			}
		}
		if found {
			ticks = append(ticks, at)
		}
	}
	return ticks
}

func TestTicksFollowTheirDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timing := drawTiming(t)
		after := drawTime(t)
		if rapid.Bool().Draw(t, "near a change") {
			if _, end := after.In(zoneOf(timing)).ZoneBounds(); !end.IsZero() {
				after = end.Add(time.Duration(rapid.IntRange(-300, 60).Draw(t, "minutes")) * time.Minute).UTC()
			}
		}
		until := after.Add(8 * time.Hour)
		got := between(timing, after, until)
		if timing.cron != nil {
			if want := ticksByDefinition(timing, after, until); !slices.EqualFunc(want, got, time.Time.Equal) {
				t.Fatalf("%s after %s = %q, want %q", timing, after.In(timing.zone), clocks(timing, got), clocks(timing, want))
			}
		}
		for i, tick := range got {
			if !tick.After(after) || i > 0 && !tick.After(got[i-1]) || tick.Nanosecond() != 0 || tick.Location() != time.UTC {
				t.Fatalf("tick %d of %s after %s is %v", i, timing, after, tick)
			}
			if again := timing.Next(tick.Add(-time.Nanosecond)); !again.Equal(tick) {
				t.Fatalf("%s: just before %v the next tick is %v", timing, tick, again)
			}
		}
	})
}

func zoneOf(t Timing) *time.Location {
	if t.zone == nil {
		return time.UTC
	}
	return t.zone
}

// A schedule is looked at any number of times, by a clock that also goes back. Ticks are sent
// once, in order, none before its time; with All none is left out, and with the others none
// that the policy wants.
func TestPlansSendEachTickOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timing, missed := drawTiming(t), rapid.SampledFrom([]Missed{Latest, Skip, All}).Draw(t, "missed")
		start := drawTime(t)
		done, now, latest := start, start, start
		var sent []time.Time
		for i := range rapid.IntRange(1, 12).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(-3600, 40_000).Draw(t, fmt.Sprint("step ", i))) * time.Second)
			if now.After(latest) {
				latest = now
			}
			due := between(timing, done, now)
			p := missed.next(timing, done, now)
			if len(due) == 0 && !p.until.IsZero() || len(due) > 0 && !slices.ContainsFunc(due, p.until.Equal) {
				t.Fatalf("%d ticks are due, the plan is %+v", len(due), p)
			}
			var want []time.Time
			switch last := due[max(0, len(due)-1):]; missed {
			case Latest:
				want = last
			case All:
				want = due[max(0, len(due)-mostAll):]
				want = want[:min(len(want), batch)]
			case Skip:
				for _, tick := range due {
					if now.Sub(tick) <= tooLate {
						want = append(want, tick)
					}
				}
			}
			if !slices.EqualFunc(want, p.ticks, time.Time.Equal) {
				t.Fatalf("%s, %s: %v are sent, want %v", timing, missed, p.ticks, want)
			}
			if lost := len(due) > 0 && (len(want) == 0 || !want[0].Equal(due[0])); lost == p.lost.IsZero() || lost && !p.lost.Equal(due[0]) {
				t.Fatalf("%s, %s: lost since %v, want %v of %v", timing, missed, p.lost, lost, due)
			}
			sent = append(sent, p.ticks...)
			if !p.until.IsZero() {
				done = p.until
			}
		}
		for i, tick := range sent {
			if i > 0 && !tick.After(sent[i-1]) || tick.After(latest) {
				t.Fatalf("sent %v", sent)
			}
		}
	})
}

// Missed ticks of years are found without a look at each of them.
func TestMissedTicksOfYearsAreFoundAtOnce(t *testing.T) {
	second, err := Every(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 500, time.UTC)
	began := time.Now()
	for _, timing := range []Timing{second, mustCron(t, "* * * * *", "Europe/Berlin"), mustCron(t, "* 2 1 1 *", "Europe/Berlin"), mustCron(t, "0 0 29 2 *", "")} {
		for _, missed := range []Missed{Latest, Skip, All} {
			if p := missed.next(timing, now.AddDate(-20, 0, 0), now); p.until.IsZero() || p.until.After(now) {
				t.Errorf("%s, %s: %+v", timing, missed, p)
			}
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("that took %v", took)
	}
}

func FuzzCron(f *testing.F) {
	for _, expression := range []string{"0 3 * * *", "*/15 0-4 1,15 jan-mar mon", "TZ=x", "? ? ? ? ?", "0 0 29 2 *", "-1 * * * *", "0/0 * * * *", "0 3 * * 1-7/2,7"} {
		f.Add(expression, "Europe/Berlin")
	}
	f.Fuzz(func(t *testing.T, expression, zone string) {
		timing, err := Cron(expression, zone)
		if err != nil {
			return
		}
		after := time.Date(2026, 3, 29, 0, 30, 0, 0, time.UTC)
		if tick := timing.Next(after); !tick.After(after) {
			t.Errorf("%s ticks at %v after %v", timing, tick, after)
		}
		if _, err := Cron(expression, zone); err != nil {
			t.Error(err)
		}
	})
}
