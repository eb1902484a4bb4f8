package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// Overview is the state of a database.
type Overview struct {
	Status     string             `json:"status"` // "ok", "attention" or "broken"
	Reasons    []Reason           `json:"reasons"`
	Transports []TransportState   `json:"transports"`
	Queues     []admin.QueueStats `json:"queues"`
	Relays     []RelayState       `json:"relays"`
	Paused     []admin.Pause      `json:"paused"` // transports of workers
	Inbox      []admin.InboxStats `json:"inbox"`
	Schema     admin.SchemaStatus `json:"schema"`
	Reports    bool               `json:"relays_report"` // whether relays of this database report
	CountedAt  time.Time          `json:"counted_at"`    // of the counts

	History chartsView `json:"-"`
}

// Counting reports whether the counts are not known yet.
func (o Overview) Counting() bool { return o.CountedAt.IsZero() }

// figures are the counts of whole tables that an overview has.
type figures struct {
	outbox  []admin.OutboxStats
	workers []admin.WorkerStats
	queues  []admin.QueueStats
	inbox   []admin.InboxStats
	parked  map[string]int // keys, by transport
}

// figures returns the figures, and when they were counted: see figureOf.
func (d *Dashboard) figures(ctx context.Context, wait time.Duration) (figures, time.Time, error) {
	return figureOf(ctx, d.counts, "figures", wait, func(ctx context.Context) (f figures, err error) {
		var blocked []admin.BlockedKey
		for _, read := range []func() error{
			func() (err error) { f.outbox, err = d.db.OutboxStats(ctx); return err },
			func() (err error) { f.workers, err = d.db.WorkerStats(ctx); return err },
			func() (err error) { f.queues, err = d.db.QueueStats(ctx); return err },
			func() (err error) { f.inbox, err = d.db.InboxStats(ctx); return err },
			func() (err error) { blocked, err = d.db.BlockedKeys(ctx, admin.BlockedKeysQuery{}); return err },
		} {
			if err := read(); err != nil {
				return f, err
			}
		}
		f.parked = map[string]int{}
		for _, b := range blocked {
			if b.State == admin.Parked {
				f.parked[b.Transport]++
			}
		}
		return f, nil
	})
}

// A Reason is why the status is not ok.
type Reason struct {
	Severity admin.Severity `json:"severity"`
	Problem  string         `json:"problem"`
	Link     string         `json:"-"`
}

// TransportState is the figures of one transport.
type TransportState struct {
	admin.OutboxStats
	Parked   int `json:"parked_keys"`
	Retrying int `json:"retrying"` // in the retry queue of its workers
	Waiting  int `json:"parked_retries"`
	Letters  int `json:"dead_letters"`
}

// RelayState is a relay and its state in words.
type RelayState struct {
	admin.Relay
	State string `json:"state"`
	Good  bool   `json:"good"`
}

const (
	// overdue is the age of a pending message from which on a relay should have published it.
	overdue = time.Minute
	// silence is the age of a relay's last report from which on it counts as silent.
	silence = 20 * time.Second
)

func (d *Dashboard) overview(r *request) error {
	o, err := d.readOverview(r.Context(), patience)
	if err != nil {
		return err
	}
	if o.History, err = d.charts(r.Context(), r.URL.Query()); err != nil {
		return err
	}
	return d.livePage(r, "overview", "Overview", o)
}

// readOverview waits so long for counts.
func (d *Dashboard) readOverview(ctx context.Context, wait time.Duration) (o Overview, err error) {
	if o.Schema, err = d.db.SchemaStatus(ctx); err != nil {
		return o, err
	}
	relays, err := d.db.Relays(ctx)
	if err != nil {
		return o, err
	}
	f, at, err := d.figures(ctx, wait)
	if err != nil {
		return o, err
	}
	if o.Paused, err = d.readPaused(ctx); err != nil {
		return o, err
	}
	o.Queues, o.Inbox, o.CountedAt = f.queues, f.inbox, at
	o.Reports = d.keepsReports()
	o.Transports = transportStates(f)
	for _, relay := range relays {
		o.Relays = append(o.Relays, stateOfRelay(relay))
	}
	o.judge()
	return o, nil
}

// keepsReports reports whether relays of the database report.
func (d *Dashboard) keepsReports() bool {
	db, ok := d.db.(interface{ Traits() outbox.StoreTraits })
	return ok && db.Traits().KeepsReports
}

// Figures are the counts and reports of a database that /api/v1/stats answers with.
type Figures struct {
	Outbox  []admin.OutboxStats `json:"outbox"`
	Queues  []admin.QueueStats  `json:"queues"`
	Retries []admin.WorkerStats `json:"retries"`
	Inbox   []admin.InboxStats  `json:"inbox"`
	Relays  []admin.Relay       `json:"relays"`
	Reports bool                `json:"relays_report"` // whether the relays of the database report
}

func (d *Dashboard) apiStats(r *request) error {
	f, _, err := d.figures(r.Context(), patient)
	if err != nil {
		return err
	}
	relays, err := d.db.Relays(r.Context())
	if err != nil {
		return err
	}
	writeJSON(r.w, http.StatusOK, Figures{f.outbox, f.queues, f.workers, f.inbox, relays, d.keepsReports()})
	return nil
}

// transportStates brings together the figures of each transport.
func transportStates(f figures) []TransportState {
	byName := map[string]*TransportState{}
	of := func(name string) *TransportState {
		if byName[name] == nil {
			byName[name] = &TransportState{OutboxStats: admin.OutboxStats{Transport: name}}
		}
		return byName[name]
	}
	for _, s := range f.outbox {
		t := of(s.Transport)
		t.OutboxStats, t.Letters = s, t.Letters+s.Failed
	}
	for _, w := range f.workers {
		t := of(w.Transport)
		t.Retrying, t.Waiting = t.Retrying+w.Retrying, t.Waiting+w.Parked
		t.Letters += w.Failed
	}
	for transport, n := range f.parked {
		of(transport).Parked = n
	}
	all := []TransportState{}
	for _, t := range byName {
		all = append(all, *t)
	}
	slices.SortFunc(all, func(a, b TransportState) int { return strings.Compare(a.Transport, b.Transport) })
	return all
}

func stateOfRelay(r admin.Relay) RelayState {
	text := func(problem string) string {
		return strings.TrimPrefix(problem, waybill.ErrUnavailable.Error()+": ")
	}
	since := ""
	if r.Since != nil {
		since = " for " + duration(r.Ago(*r.Since))
	}
	switch {
	case r.Ago(r.SeenAt) > silence:
		return RelayState{r, "silent for " + duration(r.Ago(r.SeenAt)), false}
	case r.Problem != "":
		return RelayState{r, "cannot publish" + since + ": " + text(r.Problem), false}
	case r.Degraded != "":
		return RelayState{r, "works, degraded" + since + " (polls only): " + text(r.Degraded), false}
	}
	return RelayState{r, "works", true}
}

// judge sets the status, and the reasons for it, the worst first.
func (o *Overview) judge() {
	add := func(severity admin.Severity, problem, to string) {
		o.Reasons = append(o.Reasons, Reason{severity, problem, to})
	}
	if err := o.Schema.Err(); err != nil {
		add(admin.Broken, err.Error(), "")
	}
	working := map[string]bool{}
	for _, r := range o.Relays {
		working[r.Transport] = working[r.Transport] || r.Good || r.Degraded != ""
		if !r.Good {
			add(cmp.Or(map[bool]admin.Severity{true: admin.Warning}[r.Problem == ""], admin.Broken), fmt.Sprintf("the relay of %s, process %d on %s: %s", r.Transport, r.PID, r.Host, r.State), "")
		}
	}
	for _, p := range o.Paused {
		add(admin.Warning, pauseReason(p, time.Now()), "/workers")
	}
	for _, t := range o.Transports {
		late := t.Pending > 0 && t.BlockedKeys == 0 && t.OldestAgeSeconds > overdue.Seconds()
		if late && (!o.Reports || !working[t.Transport]) {
			add(admin.Broken, fmt.Sprintf("%s: no relay reports, and the oldest of %s has waited for %s", t.Transport, plural(t.Pending, "message"), seconds(t.OldestAgeSeconds)), link("/outbox", "transport", t.Transport))
		}
		if t.BlockedKeys > 0 {
			add(admin.Warning, fmt.Sprintf("%s: the broker refuses the next message of %s", t.Transport, strings.Replace(plural(t.BlockedKeys, "key or route"), "key or routes", "keys or routes", 1)), link("/outbox", "transport", t.Transport))
		}
		if t.Waiting > 0 {
			add(admin.Warning, fmt.Sprintf("%s: %s parked in the retry queue until a release", t.Transport, plural(t.Waiting, "message")), link("/retries", "transport", t.Transport))
		}
		if t.Letters > 0 {
			add(admin.Warning, fmt.Sprintf("%s: %s", t.Transport, plural(t.Letters, "dead letter")), link("/failed", "transport", t.Transport))
		}
	}
	slices.SortStableFunc(o.Reasons, func(a, b Reason) int { return strings.Compare(string(a.Severity), string(b.Severity)) }) // error, note, warning
	o.Status = "ok"
	for _, r := range o.Reasons {
		if o.Status != "broken" {
			o.Status = map[bool]string{true: "broken", false: "attention"}[r.Severity == admin.Broken]
		}
	}
}
