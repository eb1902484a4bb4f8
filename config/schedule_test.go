package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/schedule"
)

func TestSchedulesAreRead(t *testing.T) {
	c, err := Parse("w.yaml", []byte(`
schedules:
  report: { message: report.send, cron: "30  2 * * 1-5", timezone: Europe/Berlin, missed: all, key: k, body: '{"kind": "${KIND}"}' }
  sync: { message: sync, every: 10m }
`), environment(map[string]string{"KIND": "daily"}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Schedule{
		"report": {Message: "report.send", Cron: "30  2 * * 1-5", Timezone: "Europe/Berlin", Missed: schedule.All, Key: "k", Body: `{"kind": "daily"}`},
		"sync":   {Message: "sync", Every: 10 * time.Minute},
	}
	if diff := cmp.Diff(want, c.Schedules); diff != "" {
		t.Errorf("schedules (-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{"report": "30 2 * * 1-5 Europe/Berlin", "sync": "every 10m0s"} {
		if timing, err := c.Schedules[name].Timing(); err != nil || timing.String() != want {
			t.Errorf("the timing of %s is %q, %v, want %q", name, timing, err, want)
		}
	}
	if got := c.Origins()["schedules.report.message"]; got != "w.yaml:3" {
		t.Errorf("the message comes from %q", got)
	}
}

func TestSchedulesAreRefused(t *testing.T) {
	for yaml, want := range map[string]string{
		"{}":                              "schedules.s.message: no message",
		"{message: m}":                    "schedules.s: it never ticks",
		"{message: 'No Name', every: 1m}": "schedules.s.message: not a message name",
		"{message: m, every: 1m, cron: '* * * * *'}":        "schedules.s.every: there is a cron expression, too",
		"{message: m, every: 0s}":                           "schedules.s.every: the interval 0s is not",
		"{message: m, every: 100ms}":                        "schedules.s.every: the interval 100ms is not",
		"{message: m, every: 1m, timezone: UTC}":            "schedules.s.timezone: it does nothing for an interval",
		"{message: m, cron: '* * * *'}":                     "schedules.s.cron: cron expression \"* * * *\": it needs five fields",
		"{message: m, cron: '61 * * * *'}":                  "schedules.s.cron: cron expression \"61 * * * *\": end of range (61) above maximum (59)",
		"{message: m, cron: '0 0 31 2 *'}":                  "there is no such day",
		"{message: m, cron: '* * * * *', timezone: Berlin}": `schedules.s.timezone: unknown time zone "Berlin"`,
		"{message: m, cron: '* * * * *', timezone: Local}":  `schedules.s.timezone: unknown time zone "Local"`,
		"{message: m, every: 1m, missed: none}":             `schedules.s.missed: "none" is not one of latest, skip, all`,
		"{message: m, every: 1m, body: {kind: daily}}":      "schedules.s.body: a mapping where a text belongs (put the JSON in single quotes",
		"{message: m, every: 1m, body: '{'}":                "schedules.s.body: it is not JSON",
		"{message: m, every: 1m, body: kind}":               "schedules.s.body: it is not JSON",
		"{message: m, cron: '" + minutes + " * * * *'}":     "schedules.s.cron: cron expression \"" + minutes + " * * * *\": it has 289 bytes with its time zone, the limit is 255: write ranges",
		"{message: m, evry: 1m}":                            `unknown key "evry"`,
		"{message: m, every: 1m, key: " + long(256) + "}":   "schedules.s.key: 256 bytes, the limit is 255",
		`{message: m, every: 1m, key: "a\0"}`:               "schedules.s.key: it has a NUL or is not UTF-8",
		"{message: m, every: 1m, key: \"${LATIN1}\"}":       "schedules.s.key: it has a NUL or is not UTF-8",
	} {
		_, err := Parse("w.yaml", []byte("schedules:\n  s: "+yaml), environment(map[string]string{"LATIN1": "M\xfcller"}))
		if err == nil || !strings.Contains(err.Error(), "w.yaml:2: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", yaml, err, want)
		}
	}
}

// A list of minutes that is too long.
var minutes = strings.Repeat("10,", 93) + "10"

func TestNamesOfSchedulesAreRefused(t *testing.T) {
	for _, name := range []string{`"a\nb"`, `"a\0b"`, `"a\e[31m"`, `"a\x7f"`, "A", long(191)} {
		_, err := Parse("w.yaml", []byte("schedules:\n  "+name+": {message: m, every: 1m}"), environment(nil))
		if err == nil || !strings.Contains(err.Error(), "w.yaml:2: schedules.") || !strings.Contains(err.Error(), "not a name of a schedule ("+nameRule+")") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Paths of names are kept apart to the last byte.
func TestLongNamesAreNotMistakenForEachOther(t *testing.T) {
	name := "com.example." + long(maxNameBytes-len("com.example.")-1)
	c, err := Parse("w.yaml", []byte("schedules:\n  "+name+"1: {message: m, every: 1m}\n  "+name+"2: {message: m, cron: '* * * * *'}"), environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	for last, want := range map[string]string{"1": "w.yaml:2", "2": "w.yaml:3"} {
		if got := c.Origins()[`schedules."`+name+last+`".message`]; got != want {
			t.Errorf("the message of ...%s comes from %q, want %q", last, got, want)
		}
	}
}

func long(n int) string { return strings.Repeat("k", n) }
