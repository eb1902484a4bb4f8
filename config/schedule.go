package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill/schedule"
)

// A Schedule dispatches a message at given times. One of Cron and Every is set.
type Schedule struct {
	Message string // the message name
	// Cron is an expression of five fields, by the clocks of Timezone: see schedule.Cron.
	Cron     string
	Timezone string
	// Every is an interval: see schedule.Every.
	Every time.Duration
	// Missed is the policy for ticks at which no process ran. Empty means schedule.Latest.
	Missed schedule.Missed
	// Body is the JSON of the message. Empty means {}.
	Body string
	// Key is the partition key of the message. Empty means that of its Go type, or none.
	Key string
}

// Timing returns the timing of the schedule.
func (s Schedule) Timing() (schedule.Timing, error) {
	if s.Every != 0 {
		return schedule.Every(s.Every)
	}
	return schedule.Cron(s.Cron, s.Timezone)
}

func (s *Schedule) read(r *reader) field {
	body := r.text(&s.Body)
	return r.group(map[string]field{
		"message":  r.text(&s.Message),
		"cron":     r.text(&s.Cron),
		"timezone": r.text(&s.Timezone),
		"every":    r.duration(&s.Every),
		"missed":   oneOf(r, &s.Missed, schedule.Latest, schedule.Skip, schedule.All),
		"key":      r.text(&s.Key),
		"body": func(n *node, at keyPath) {
			if n != nil && (n.kind == mapping || n.kind == sequence) {
				r.fail(n.line, at, fmt.Sprintf("%s where a text belongs", n.kind), `put the JSON in single quotes, such as '{"kind": "daily"}'`)
				return
			}
			body(n, at)
		},
	})
}

// maxKey is the longest partition key, in bytes.
const maxKey = 255

func (v *validation) schedules() {
	for _, name := range slices.Sorted(maps.Keys(v.c.Schedules)) {
		s, at := v.c.Schedules[name], keyPath{"schedules", name}
		v.check(validName(name), at, "not a name of a schedule", nameRule)
		v.check(s.Message != "", at.child("message"), "no message", "write the name of the message to dispatch")
		v.check(s.Message == "" || validMessage(s.Message), at.child("message"), "not a message name", messageRule)
		v.timing(at, s)
		switch s.Missed {
		case "", schedule.Latest, schedule.Skip, schedule.All:
		default:
			v.fail(at.child("missed"), quote(string(s.Missed))+" is not a policy", "write latest, skip or all")
		}
		v.check(s.Body == "" || json.Valid([]byte(s.Body)), at.child("body"), "it is not JSON", `such as '{"kind": "daily"}'`)
		v.check(len(s.Key) <= maxKey, at.child("key"), fmt.Sprintf("%d bytes, the limit is %d", len(s.Key), maxKey), "")
		v.check(utf8.ValidString(s.Key) && !strings.Contains(s.Key, "\x00"), at.child("key"), "it has a NUL or is not UTF-8", "no database keeps such a key")
	}
}

func (v *validation) timing(at keyPath, s Schedule) {
	interval := s.Every != 0 || v.c.lines[at.child("every").String()] > 0
	switch {
	case s.Cron == "" && !interval:
		v.fail(at, "it never ticks", `give it cron: "30 2 * * *", or every: 10m`)
	case s.Cron != "" && interval:
		v.fail(at.child("every"), "there is a cron expression, too", "write one of them")
	case interval:
		v.check(s.Timezone == "", at.child("timezone"), "it does nothing for an interval", "remove it, or write a cron expression")
		_, err := schedule.Every(s.Every)
		v.timingError(at.child("every"), err, "")
	default:
		_, err := schedule.Cron(s.Cron, "")
		v.timingError(at.child("cron"), err, "minute, hour, day of month, month and day of week, such as 30 2 * * 1-5")
		if err == nil {
			_, err = schedule.Cron(s.Cron, s.Timezone)
			v.timingError(at.child("timezone"), err, "")
		}
	}
}

func (v *validation) timingError(at keyPath, err error, hint string) {
	if err != nil {
		v.fail(at, strings.TrimPrefix(err.Error(), "schedule: "), hint)
	}
}

type scheduleView struct {
	Message  string          `yaml:"message" json:"message"`
	Cron     string          `yaml:"cron,omitempty" json:"cron,omitempty"`
	Timezone string          `yaml:"timezone,omitempty" json:"timezone,omitempty"`
	Every    string          `yaml:"every,omitempty" json:"every,omitempty"`
	Missed   schedule.Missed `yaml:"missed,omitempty" json:"missed,omitempty"`
	Body     string          `yaml:"body,omitempty" json:"body,omitempty"`
	Key      string          `yaml:"key,omitempty" json:"key,omitempty"`
}

func (c *Config) scheduleViews() map[string]scheduleView {
	views := map[string]scheduleView{}
	for name, s := range c.Schedules {
		views[name] = scheduleView{s.Message, s.Cron, s.Timezone, optional(s.Every), s.Missed, asWritten(s.Body), asWritten(s.Key)}
	}
	return views
}
