package wayprom_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayprom"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

type placed struct {
	ID string `json:"id"`
}

func (placed) MessageName() string    { return "order.placed" }
func (m placed) PartitionKey() string { return m.ID }

// figures gathers reg: counters and gauges by their value, histograms by their count.
func figures(t *testing.T, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "waybill_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

func openSQLite(t *testing.T) *waysqlite.DB {
	t.Helper()
	db, err := waysqlite.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"), waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

// Three messages go through an outbox, a relay, a queue and a worker. The first attempt at
// the second one fails; the third one's handler refuses it for good; the first one comes
// twice.
func TestMetricsAddUpToWhatHappened(t *testing.T) {
	db, to := openSQLite(t), openSQLite(t)
	reg := prometheus.NewPedanticRegistry()
	m, err := wayprom.New(reg)
	try(t, err)
	reg.MustRegister(wayprom.NewCollector(to, nil))
	queue, err := to.Queue("events", waysqlite.QueueConfig{})
	try(t, err)
	out, err := outbox.New(db, outbox.Config{To: "events", Observer: m})
	try(t, err)
	first, err := waybill.NewMessageID()
	try(t, err)
	try(t, out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		_, err := tx.Dispatch(ctx, placed{"a"}, first)
		for _, id := range []string{"b", "c"} {
			_, e := tx.Dispatch(ctx, placed{id})
			err = errors.Join(err, e)
		}
		return err
	}))
	relay, err := outbox.NewRelay(db, queue, outbox.RelayConfig{Transport: "events", Drain: true, Observer: m})
	try(t, err)
	try(t, relay.Run(t.Context()))

	bus, tried := waybill.NewBus("billing"), map[string]int{}
	inbox.Handle(bus, to, "bill", func(_ context.Context, _ *sql.Tx, msg placed) error {
		tried[msg.ID]++
		switch {
		case msg.ID == "b" && tried["b"] == 1:
			return errors.New("busy")
		case msg.ID == "c":
			return waybill.Unrecoverable(errors.New("no such card"))
		}
		return nil
	})
	w, err := worker.New(bus, queue, worker.Config{
		Transport: "events", Concurrency: 1, Limit: 4, Store: to, Observer: m,
		Retry: waybill.Backoff{Delay: time.Millisecond}, OnExhausted: worker.Skip,
	})
	try(t, err)
	try(t, w.Run(t.Context()))
	if err := bus.HandleRecord(waybill.WithObserver(t.Context(), m), recordOf(t, first), "events", 0); err != nil {
		t.Fatal(err)
	}

	got := figures(t, reg)
	for name, want := range map[string]float64{
		"dispatched_total order.placed events":                 3,
		"relay_published_total published events":               3,
		"relay_publish_duration_seconds events":                3,
		"handler_duration_seconds order.placed success events": 2,
		"handler_duration_seconds order.placed failure events": 2,
		"retries_total order.placed events":                    1,
		"inbox_duplicates_total bill order.placed":             1,
		"database_up":                   1,
		"failed_messages worker events": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if t.Failed() {
		t.Logf("all: %v", got)
	}
}

func recordOf(t *testing.T, id waybill.MessageID) *waybill.Record {
	t.Helper()
	s := waybill.Serializer{}
	rec, err := s.Encode(waybill.NewEnvelope(placed{"a"}).With(id))
	try(t, err)
	return rec
}

func TestStrangersAddNoSeries(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m, err := wayprom.New(reg)
	try(t, err)
	for i := range 1000 {
		m.Observe(t.Context(), waybill.Event{Kind: waybill.Handled, Transport: "events", Name: fmt.Sprintf("junk.%d", i), Err: &waybill.UnknownNameError{}})
	}
	for i := range 1000 {
		unreadable := &waybill.Record{Problem: errors.New("no message id")}
		m.Observe(t.Context(), waybill.Event{Kind: waybill.Handled, Transport: "events", Name: fmt.Sprintf("junk.%d\xff", i), Record: unreadable, Err: &waybill.DecodeError{Err: unreadable.Problem}})
	}
	m.Observe(t.Context(), waybill.Event{Kind: waybill.Handled, Transport: "events", Name: "junk \xff", Err: errors.New("busy")})
	if got := figures(t, reg); len(got) != 1 || got["handler_duration_seconds other failure events"] != 2001 {
		t.Errorf("names of strangers: %v, want one series", got)
	}
	for i := range 2 * wayprom.MaxNames {
		m.Observe(t.Context(), waybill.Event{Kind: waybill.Dispatched, Transport: "events", Name: fmt.Sprintf("order.%d", i), Key: "k", ID: waybill.MessageID{}})
	}
	if got := figures(t, reg); len(got) != 2+wayprom.MaxNames || got["dispatched_total other events"] != wayprom.MaxNames {
		t.Errorf("%d series and %v others, want %d and %d", len(got), got["dispatched_total other events"], 2+wayprom.MaxNames, wayprom.MaxNames)
	}
}

func TestInterruptedAttemptIsNoFailure(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m, err := wayprom.New(reg)
	try(t, err)
	for _, err := range []error{worker.ErrDrained, waybill.ErrLeaseLost, waybill.ErrUnavailable, nil, errors.New("busy")} {
		m.Observe(t.Context(), waybill.Event{Kind: waybill.Handled, Transport: "events", Name: "order.placed", Err: err})
	}
	m.Observe(t.Context(), waybill.Event{Kind: waybill.PublishFailed, Transport: "events"})
	m.Observe(t.Context(), waybill.Event{Kind: waybill.Duplicate, Name: "order.placed", Handler: "bill"})
	want := map[string]float64{
		"handler_duration_seconds order.placed interrupted events": 3,
		"handler_duration_seconds order.placed success events":     1,
		"handler_duration_seconds order.placed failure events":     1,
		"relay_published_total refused events":                     1,
		"inbox_duplicates_total bill order.placed":                 1,
	}
	if diff := cmp.Diff(want, figures(t, reg)); diff != "" {
		t.Errorf("figures (-want +got):\n%s", diff)
	}
}

// slowDatabase counts how often it is read.
type slowDatabase struct {
	reads int
	err   error
}

func (d *slowDatabase) OutboxStats(ctx context.Context) ([]admin.OutboxStats, error) {
	d.reads++
	if d.err != nil {
		<-ctx.Done()
		return nil, d.err
	}
	return []admin.OutboxStats{{Transport: "events", Pending: 7, OldestAgeSeconds: 1.5, BlockedKeys: 2, Delayed: 3, Failed: 1}}, nil
}

func (*slowDatabase) QueueStats(context.Context) ([]admin.QueueStats, error) {
	return []admin.QueueStats{{Queue: "mail", Pending: 5, InFlight: 4, OldestAgeSeconds: .5}}, nil
}

func (*slowDatabase) WorkerStats(context.Context) ([]admin.WorkerStats, error) {
	return []admin.WorkerStats{{Transport: "mail", Retrying: 6, Parked: 2, Failed: 9}}, nil
}

func TestCollectorWithoutADatabasePanics(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); got != "wayprom: NewCollector needs a database" {
			t.Errorf("panic %q, want one that asks for a database", got)
		}
	}()
	wayprom.NewCollector(nil, nil)
}

func TestScrapesCannotHurtTheDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, reg := &slowDatabase{}, prometheus.NewPedanticRegistry()
		var log bytes.Buffer
		reg.MustRegister(wayprom.NewCollector(db, slog.New(slog.NewTextHandler(&log, nil))))
		want := map[string]float64{
			"database_up": 1, "outbox_pending events": 7, "outbox_oldest_age_seconds events": 1.5, "outbox_blocked_keys events": 2, "outbox_delayed events": 3,
			"failed_messages relay events": 1, "failed_messages worker mail": 9, "retrying_messages mail": 6, "parked_messages mail": 2,
			"queue_messages mail": 5, "queue_in_flight mail": 4, "queue_oldest_age_seconds mail": .5,
		}
		for range 50 {
			if diff := cmp.Diff(want, figures(t, reg)); diff != "" {
				t.Fatalf("figures (-want +got):\n%s", diff)
			}
		}
		if db.reads != 1 {
			t.Errorf("50 scrapes read the database %d times, want once", db.reads)
		}
		db.err = errors.New("frozen")
		for range 3 {
			time.Sleep(10 * time.Second)
			begun := time.Now()
			if diff := cmp.Diff(map[string]float64{"database_up": 0}, figures(t, reg)); diff != "" {
				t.Errorf("of a frozen database (-want +got):\n%s", diff)
			}
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("a scrape took %v, want at most 3s", took)
			}
		}
		if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "frozen") {
			t.Errorf("an outage of three scrapes is logged as %q, want one line", &log)
		}
	})
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
