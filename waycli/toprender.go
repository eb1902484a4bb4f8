package waycli

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// A topTable is one of the tables of a frame.
type topTable struct {
	header []string
	rows   [][]any
}

// render returns the lines of the frame for a screen of width columns and height lines, of
// which it uses no more. Zero means no limit, and no footer about keys.
func (f topFrame) render(width, height int) []string {
	head := []string{f.title(), f.sums()}
	if f.err != nil {
		head = append(head, "cannot count: "+f.err.Error())
	}
	tables := f.tables()
	if height > 0 {
		fit(tables, height-len(head)-1)
	}
	lines := head
	for _, t := range tables {
		lines = append(append(lines, ""), t.lines(width)...)
	}
	if height > 0 {
		lines = append(lines[:min(len(lines), max(height-1, 0))], "q quits, p pauses")
	}
	for i, line := range lines {
		lines[i] = cut(visible(line), width)
	}
	return lines
}

func (f topFrame) title() string {
	state := f.At.Format("15:04:05")
	if f.paused {
		state += ", paused: p continues"
	}
	return fmt.Sprintf("%s  %s", state, f.Database)
}

func (f topFrame) sums() string {
	l := f.Last
	return fmt.Sprintf("last 5m: %s dispatched, %s published, %s handled, %s failed, p50 %s, p99 %s",
		count(int(l.Dispatched)), count(int(l.Published)), count(int(l.Handled)), count(int(l.Failed)), seconds(l.Critical.P50), seconds(l.Critical.P99))
}

// tables returns the tables that have something to show.
func (f topFrame) tables() []topTable {
	problems := topTable{header: []string{"PROBLEM"}}
	for _, p := range f.Problems {
		problems.add(visible(p.Problem))
	}
	outbox := topTable{header: []string{"OUTBOX", "PENDING", "OLDEST", "BLOCKED KEYS", "DELAYED", "DEAD LETTERS"}}
	for _, o := range f.Outbox {
		outbox.add(o.Transport, count(o.Pending), seconds(o.OldestAgeSeconds), count(o.BlockedKeys), count(o.Delayed), count(o.Failed))
	}
	queues := topTable{header: []string{"QUEUE", "PENDING", "OLDEST", "IN FLIGHT", "RETRYING"}}
	for _, q := range f.Queues {
		queues.add(q.Queue, count(q.Pending), seconds(q.OldestAgeSeconds), count(q.InFlight), count(q.Retrying))
	}
	retries := topTable{header: []string{"FAILED IN WORKERS", "RETRYING", "PARKED", "DEAD LETTERS"}}
	for _, w := range f.Retries {
		retries.add(w.Transport, count(w.Retrying), count(w.Parked), count(w.Failed))
	}
	relays := topTable{header: []string{"RELAY OF", "HOST", "PID", "UP", "STATE"}}
	for _, r := range f.Relays {
		relays.add(r.Transport, r.Host, r.PID, short(r.Ago(r.StartedAt)), relayState(r))
	}
	if f.reports && len(f.Relays) == 0 {
		relays.add("no relay has reported within the last minute")
	}
	workers := topTable{header: []string{"WORKER", "BUSY", "/S", "HANDLED", "FAILED", "HEAP", "STATE", "LONGEST RUNNING"}}
	for _, w := range f.Workers {
		rate := "-"
		if perSecond, ok := f.perSecond[w.ID]; ok {
			rate = count(int(perSecond + .5))
		}
		workers.add(w.Name, fmt.Sprintf("%d/%d", w.Busy, w.Concurrency), rate, count(int(w.Handled)), count(int(w.Failed)), fmt.Sprintf("%d MiB", w.HeapBytes>>20), workerState(w), longestRunning(w))
	}
	if len(f.Workers) == 0 {
		workers.add("no worker has reported within the last minute")
	}
	paused := topTable{header: []string{"PAUSED", "SINCE"}}
	for _, p := range f.Paused {
		paused.add(visible(p.Transport), pauseOrigin(p))
	}
	return slices.DeleteFunc([]topTable{problems, outbox, queues, retries, relays, workers, paused}, func(t topTable) bool { return len(t.rows) == 0 })
}

func (t *topTable) add(cells ...any) { t.rows = append(t.rows, cells) }

// fit shortens the longest tables until all of them, with their headers and the empty lines
// above, have at most height lines, or one row each.
func fit(tables []topTable, height int) {
	total, kept := 0, make([]int, len(tables))
	for i, t := range tables {
		kept[i] = len(t.rows)
		total += 2 + kept[i]
	}
	for ; total > height; total-- {
		longest := 0
		for i := range kept {
			if kept[i] > kept[longest] {
				longest = i
			}
		}
		if len(kept) == 0 || kept[longest] <= 1 {
			break
		}
		kept[longest]--
	}
	for i, n := range kept {
		if left := len(tables[i].rows) - n; left > 0 {
			// The last line says how many rows are missing, itself included.
			tables[i].rows = append(tables[i].rows[:n-1:n-1], []any{fmt.Sprintf("... %s more", count(left+1))})
		}
	}
}

// lines returns the table with aligned columns. A cell alone in its row takes the line. On
// less than 100 columns, the first cell of a row has at most 20.
func (t topTable) lines(width int) []string {
	all := [][]string{t.header}
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = plain(fmt.Sprint(cell))
		}
		if width > 0 && width < 100 && len(cells) > 1 {
			cells[0] = cut(cells[0], 20)
		}
		all = append(all, cells)
	}
	widths := make([]int, len(t.header))
	for _, cells := range all {
		for i, cell := range cells {
			if len(cells) > 1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	lines := make([]string, len(all))
	for n, cells := range all {
		var b strings.Builder
		for i, cell := range cells {
			fmt.Fprintf(&b, "%-*s  ", widths[i], cell)
		}
		lines[n] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// cut returns s in at most width characters; zero means no limit.
func cut(s string, width int) string {
	if width <= 0 || utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}
