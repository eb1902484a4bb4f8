package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// A Timing is the rule by which a schedule ticks, made by Cron or Every. Its ticks are whole
// seconds, the same in every process.
type Timing struct {
	text  string
	every time.Duration
	cron  *cron.SpecSchedule // its location is not used
	zone  *time.Location
}

// parser reads the five fields of crontab(5).
var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// allHours is the bit by which the parser marks a field "*".
const allHours = 1 << 63

// maxSpec is the longest text of a Timing that every database keeps, in bytes.
const maxSpec = 255

// Cron returns the timing of an expression with the five fields of crontab(5), such as
// "30 2 * * 1-5", by the clocks of a time zone, such as "Europe/Berlin"; empty means UTC.
// Of the days of the week 0 and 7 are Sunday. Both together have at most 255 bytes.
//
// Where clocks are changed, an expression that names hours ticks once for each reading: at
// the moment of the change for readings that the clocks skip, and at the first of two equal
// readings. One with "*" for the hour ticks by elapsed time, and so in every real hour.
func Cron(expression, zone string) (Timing, error) {
	bad := func(err error) (Timing, error) {
		return Timing{}, fmt.Errorf("schedule: cron expression %q: %w", expression, err)
	}
	if len(strings.Fields(expression)) != 5 || strings.Contains(expression, "=") {
		return bad(errors.New("it needs five fields: minute, hour, day of month, month, day of week, such as 30 2 * * 1-5"))
	}
	parsed, err := parser.Parse(expression)
	if err != nil {
		var other error // the first one has the text as written
		if parsed, other = parser.Parse(sevenAsZero(expression)); other != nil {
			return bad(err)
		}
	}
	if zone == "" {
		zone = "UTC"
	}
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return Timing{}, fmt.Errorf("schedule: unknown time zone %q: write a name such as Europe/Berlin", zone)
	}
	t := Timing{text: strings.Join(strings.Fields(expression), " "), cron: parsed.(*cron.SpecSchedule), zone: location}
	if zone != "UTC" {
		t.text += " " + zone
	}
	if t.cron.Next(time.Date(2023, 3, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return bad(errors.New("there is no such day"))
	}
	if n := len(t.text); n > maxSpec {
		return bad(fmt.Errorf("it has %d bytes with its time zone, the limit is %d: write ranges and steps, such as 0-20,40-59/2", n, maxSpec))
	}
	return t, nil
}

// sevenAsZero writes the Sunday 7 of crontab(5) as 0, which the parser knows.
func sevenAsZero(expression string) string {
	fields := strings.Fields(expression)
	var days []string
	for _, day := range strings.Split(fields[4], ",") {
		span, step, stepped := strings.Cut(day, "/")
		first, last, _ := strings.Cut(span, "-")
		switch from, err := strconv.Atoi(first); {
		case span == "7" || span == "7-7":
			day = strings.Replace(day, span, "0-0", 1)
		case last == "7" && !stepped:
			day = first + "-6,0"
		case last == "7" && err == nil:
			day = first + "-6/" + step
			if every, err := strconv.Atoi(step); err == nil && every > 0 && (7-from)%every == 0 {
				day += ",0"
			}
		}
		days = append(days, day)
	}
	return strings.Join(append(fields[:4], strings.Join(days, ",")), " ")
}

// Every returns the timing with ticks at the multiples of an interval since 1970 in UTC. It
// is a number of whole seconds.
func Every(interval time.Duration) (Timing, error) {
	if interval < time.Second || interval%time.Second != 0 {
		return Timing{}, fmt.Errorf("schedule: the interval %v is not a number of whole seconds above zero", interval)
	}
	return Timing{text: "every " + interval.String(), every: interval}, nil
}

// String returns the timing as operators see it. Two timings with the same text tick at the
// same times.
func (t Timing) String() string { return t.text }

// Next returns the first tick after a time, in UTC. It is zero for the zero Timing, and where
// none comes within five years.
func (t Timing) Next(after time.Time) time.Time {
	switch {
	case t.every > 0:
		interval, seconds := int64(t.every/time.Second), after.Unix()
		n := seconds / interval
		if seconds%interval < 0 {
			n-- // rounded down also before 1970
		}
		return time.Unix((n+1)*interval, 0).UTC()
	case t.cron == nil:
		return time.Time{}
	case t.cron.Hour&allHours != 0:
		return t.nextElapsed(after)
	}
	for r := t.cron.Next(reading(after.In(t.zone))); !r.IsZero(); r = t.cron.Next(r) {
		if at := t.first(r); at.After(after) {
			return at
		}
	}
	return time.Time{}
}

// reading returns the clock of a local time as if it were UTC, where no clock is changed.
func reading(local time.Time) time.Time {
	_, offset := local.Zone()
	return local.UTC().Add(time.Duration(offset) * time.Second)
}

// at returns the instant of a reading under the offset in force at a time.
func at(r time.Time, in time.Time) time.Time {
	_, offset := in.Zone()
	return r.Add(-time.Duration(offset) * time.Second)
}

// nextElapsed searches the periods between two changes of the clocks, one after the other.
func (t Timing) nextElapsed(after time.Time) time.Time {
	local := after.In(t.zone)
	from := reading(local)
	for {
		r := t.cron.Next(from)
		if r.IsZero() {
			return r
		}
		_, end := local.ZoneBounds()
		if tick := at(r, local); end.IsZero() || tick.Before(end) {
			return tick
		}
		local, from = end, reading(end).Add(-time.Nanosecond)
	}
}

// first returns the first instant at which clocks show a reading, or the moment of the change
// that skips it.
func (t Timing) first(r time.Time) time.Time {
	guess := time.Date(r.Year(), r.Month(), r.Day(), r.Hour(), r.Minute(), r.Second(), 0, t.zone)
	start, end := guess.ZoneBounds()
	if !start.IsZero() {
		if before := start.Add(-time.Second); at(r, before).Before(start) {
			return at(r, before)
		}
	}
	switch shown := reading(guess); {
	case shown.Equal(r):
		return guess.UTC()
	case shown.After(r):
		return start.UTC()
	}
	return end.UTC()
}
