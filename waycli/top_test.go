package waycli

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// exampleFrame is a frame of a service with some trouble.
func exampleFrame() topFrame {
	now := time.Now()
	since := now.Add(-90 * time.Second)
	f := topFrame{At: now, Database: "postgres://app@db/shop", reports: true, perSecond: map[string]float64{"1": 612.4}}
	f.Outbox = []admin.OutboxStats{{Transport: "events", Pending: 12_345, OldestAgeSeconds: 92, BlockedKeys: 2, Failed: 1}, {Transport: "mail", Delayed: 3}}
	f.Queues = []admin.QueueStats{{Queue: "billing", Pending: 40, InFlight: 10, Retrying: 1, OldestAgeSeconds: .25}}
	f.Retries = []admin.WorkerStats{{Transport: "billing", Retrying: 4, Parked: 1, Failed: 17}}
	f.Relays = []admin.Relay{
		{Transport: "events", Host: "web-1", PID: 4711, StartedAt: now.Add(-3 * time.Hour), SeenAt: now, Problem: "dial tcp 10.0.0.7:5672: connect: connection refused", Since: &since},
		{Transport: "mail", Host: "web-2", PID: 99, StartedAt: now.Add(-30 * time.Second), SeenAt: now, AgeSeconds: 30},
	}
	f.Workers = []admin.Worker{{StartedAt: now.Add(-time.Hour), SeenAt: now, Report: worker.Report{
		ID: "1", Name: "billing-7d9c8-x2vlp", State: worker.StateRunning, Concurrency: 10, Busy: 10, Handled: 1_204_000, Failed: 21, HeapBytes: 48 << 20,
		Running: []worker.RunningMessage{{Name: "order.placed", ID: waybill.MessageID{1, 0x90, 0x8a, 0x5d}, Handler: "charge", Seconds: 4.2}},
	}}}
	f.Last.Dispatched, f.Last.Published, f.Last.Handled, f.Last.Failed = 40_000, 39_000, 38_500, 21
	f.Last.Critical = critical{P50: .04, P95: .2, P99: 1.5}
	return f
}

// render in a bubble, in which it is always midnight.
func renderExample(t *testing.T, width, height int, change func(*topFrame)) (lines []string) {
	synctest.Test(t, func(*testing.T) {
		f := exampleFrame()
		f.At = f.At.UTC()
		change(&f)
		lines = f.render(width, height)
	})
	return lines
}

func TestTopShowsPauses(t *testing.T) {
	lines := renderExample(t, 120, 40, func(f *topFrame) {
		f.Paused = []admin.Pause{{Transport: "billing", Since: f.At.Add(-time.Minute), Actor: "ada@web-1", Reason: "bank is down"}}
	})
	if got := strings.Join(lines, "\n"); !strings.Contains(got, "PAUSED") || !strings.Contains(got, "(1m) by ada@web-1: bank is down") {
		t.Errorf("a pause is not shown:\n%s", got)
	}
}

func TestTopShowsProblems(t *testing.T) {
	lines := renderExample(t, 120, 40, func(f *topFrame) {
		f.Problems = []statsProblem{{"mail", "3 pending, no relay for mail"}}
	})
	if got := strings.Join(lines, "\n"); !strings.Contains(got, "\n\nPROBLEM\n3 pending, no relay for mail\n\nOUTBOX") {
		t.Errorf("a problem is not shown first:\n%s", got)
	}
}

func TestTopFitsTheScreen(t *testing.T) {
	for _, c := range []struct {
		width, height int
		want          string
	}{
		{120, 40, `
00:00:00  postgres://app@db/shop
last 5m: 40,000 dispatched, 39,000 published, 38,500 handled, 21 failed, p50 40ms, p99 1.5s

OUTBOX  PENDING  OLDEST  BLOCKED KEYS  DELAYED  DEAD LETTERS
events  12,345   1m32s   2             0        1
mail    0        -       0             3        0

QUEUE    PENDING  OLDEST  IN FLIGHT  RETRYING
billing  40       250ms   10         1

FAILED IN WORKERS  RETRYING  PARKED  DEAD LETTERS
billing            4         1       17

RELAY OF  HOST   PID   UP  STATE
events    web-1  4711  3h  cannot publish for 1m30s: dial tcp 10.0.0.7:5672: connect: connection refused
mail      web-2  99    1m  silent for 30s

WORKER               BUSY   /S   HANDLED    FAILED  HEAP    STATE    LONGEST RUNNING
billing-7d9c8-x2vlp  10/10  612  1,204,000  21      48 MiB  running  order.placed 01908a5d-0000-0000-0000-000000000000 …
q quits, p pauses
`},
		{80, 15, `
00:00:00  postgres://app@db/shop
last 5m: 40,000 dispatched, 39,000 published, 38,500 handled, 21 failed, p50 40…

OUTBOX  PENDING  OLDEST  BLOCKED KEYS  DELAYED  DEAD LETTERS
... 2 more

QUEUE    PENDING  OLDEST  IN FLIGHT  RETRYING
billing  40       250ms   10         1

FAILED IN WORKERS  RETRYING  PARKED  DEAD LETTERS
billing            4         1       17

RELAY OF  HOST  PID  UP  STATE
... 2 more
q quits, p pauses
`},
	} {
		got := "\n" + strings.Join(renderExample(t, c.width, c.height, func(*topFrame) {}), "\n") + "\n"
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%d columns, %d lines (-want +got):\n%s", c.width, c.height, diff)
		}
	}
}

func TestTopNeverLeavesTheScreen(t *testing.T) {
	grow := func(f *topFrame) {
		for i := range 50 {
			f.Outbox = append(f.Outbox, admin.OutboxStats{Transport: fmt.Sprint("transport-with-a-very-long-name-", i)})
			f.Workers = append(f.Workers, f.Workers[0])
		}
		f.err = errors.New(strings.Repeat("away ", 100))
	}
	for width := 1; width < 140; width += 3 {
		for height := 1; height < 60; height++ {
			lines := renderExample(t, width, height, grow)
			if len(lines) > height {
				t.Fatalf("%d lines on a screen of %d", len(lines), height)
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); n > width {
					t.Fatalf("a line of %d characters on a screen of %d: %s", n, width, line)
				}
			}
		}
	}
}

func TestTopShortensTheLongestTables(t *testing.T) {
	lines := renderExample(t, 0, 24, func(f *topFrame) {
		for i := range 50 {
			f.Outbox = append(f.Outbox, admin.OutboxStats{Transport: fmt.Sprint("t", i)})
		}
	})
	all := strings.Join(lines, "\n")
	if len(lines) != 24 || !strings.Contains(all, "\n... 47 more\n") || !strings.Contains(all, "\nbilling-7d9c8-x2vlp") {
		t.Errorf("%d lines:\n%s\nwant 24, with 5 of 52 transports, and the worker", len(lines), all)
	}
}

func TestTopLeavesNothingForATerminalToObey(t *testing.T) {
	const evil = "\x1b[2J\u202e\x9b\r\n"
	lines := renderExample(t, 100, 50, func(f *topFrame) {
		f.Database, f.err = evil, errors.New(evil)
		f.Outbox[0].Transport, f.Queues[0].Queue, f.Retries[0].Transport = evil, evil, evil
		f.Relays[0].Problem, f.Relays[0].Host = evil, evil
		f.Workers[0].Name, f.Workers[0].Running[0].Name = evil, evil
	})
	if all := strings.Join(lines, ""); strings.ContainsFunc(all, unprintable) || strings.Count(all, `\x1b[2J`) != 9 {
		t.Errorf("got %q", lines)
	}
}

func TestTopRatesAreThoseBetweenReports(t *testing.T) {
	at := func(seconds int, handled int64) topFrame {
		return topFrame{Workers: []admin.Worker{{SeenAt: time.Unix(int64(seconds), 0), Report: worker.Report{ID: "1", Handled: handled}}}}
	}
	before := at(0, 100)
	for _, c := range []struct {
		next topFrame
		want map[string]float64
	}{
		{at(0, 100), map[string]float64{}},
		{at(5, 600), map[string]float64{"1": 100}},
		{at(5, 600), map[string]float64{"1": 100}}, // no new report
		{at(10, 600), map[string]float64{"1": 0}},
	} {
		c.next.addRates(before)
		if diff := cmp.Diff(c.want, c.next.perSecond); diff != "" {
			t.Errorf("rates (-want +got):\n%s", diff)
		}
		before = c.next
	}
}
