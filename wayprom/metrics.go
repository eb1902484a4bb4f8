package wayprom

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// MaxNames is how many names of messages have series of their own.
const MaxNames = 200

// other is the label of all further names.
const other = "other"

// Metrics is a waybill.Observer that counts. Its methods may be called concurrently.
type Metrics struct {
	dispatched, published, retries, duplicates *prometheus.CounterVec
	publish, handling                          *prometheus.HistogramVec

	mu    sync.RWMutex
	names map[string]bool // guarded by mu
}

// New registers the metrics of a process. One process calls it once for a registerer, and
// gives the result as Observer to all its outboxes, relays, workers and buses.
func New(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m := &Metrics{
		names:      map[string]bool{},
		dispatched: counter("waybill_dispatched_total", "Messages written to an outbox or sent.", "transport", "message"),
		published:  counter("waybill_relay_published_total", "Messages that a relay has tried to publish, by result: published, or refused by the broker.", "transport", "result"),
		retries:    counter("waybill_retries_total", "Failed attempts after which a message waits to be handled again.", "transport", "message"),
		duplicates: counter("waybill_inbox_duplicates_total", "Deliveries without effect, because an inbox had an entry for them.", "message", "handler"),
		publish: histogram("waybill_relay_publish_duration_seconds", "Time from the dispatch of a message to its confirmation by the broker.",
			[]float64{.002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300, 1800}, "transport"),
		handling: histogram("waybill_handler_duration_seconds", "Time of one attempt to handle a message, all its handlers together, by result: success, failure, or interrupted by a stop or a lost lease.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120}, "transport", "message", "result"),
	}
	for _, c := range []prometheus.Collector{m.dispatched, m.published, m.retries, m.duplicates, m.publish, m.handling} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("wayprom: %w", err)
		}
	}
	return m, nil
}

var _ waybill.Observer = (*Metrics)(nil)

// Observe implements waybill.Observer.
func (m *Metrics) Observe(_ context.Context, e waybill.Event) {
	switch e.Kind {
	case waybill.Dispatched:
		m.dispatched.WithLabelValues(e.Transport, m.name(e)).Inc()
	case waybill.Published:
		m.published.WithLabelValues(e.Transport, "published").Inc()
		m.publish.WithLabelValues(e.Transport).Observe(e.Duration.Seconds())
	case waybill.PublishFailed:
		m.published.WithLabelValues(e.Transport, "refused").Inc()
	case waybill.Handled:
		m.handling.WithLabelValues(e.Transport, m.name(e), result(e.Err)).Observe(e.Duration.Seconds())
	case waybill.Retrying:
		m.retries.WithLabelValues(e.Transport, m.name(e)).Inc()
	case waybill.Duplicate:
		m.duplicates.WithLabelValues(m.name(e), e.Handler).Inc()
	}
}

// result is the label of an attempt.
func result(err error) string {
	switch {
	case err == nil:
		return "success"
	case worker.Failed(err):
		return "failure"
	}
	return "interrupted"
}

// name is the label of a message.
func (m *Metrics) name(e waybill.Event) string {
	m.mu.RLock()
	known := m.names[e.Name]
	m.mu.RUnlock()
	if known {
		return e.Name
	}
	unknown := (*waybill.UnknownNameError)(nil)
	if errors.As(e.Err, &unknown) || e.Record != nil && e.Record.Problem != nil || !utf8.ValidString(e.Name) {
		return other
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.names) >= MaxNames && !m.names[e.Name] {
		return other
	}
	m.names[e.Name] = true
	return e.Name
}
