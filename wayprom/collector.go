package wayprom

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybill-go/waybill/admin"
)

// A Database is the part of a database that a collector reads. Those of waypg, waymysql and
// waysqlite have it.
type Database interface {
	OutboxStats(ctx context.Context) ([]admin.OutboxStats, error)
	QueueStats(ctx context.Context) ([]admin.QueueStats, error)
	WorkerStats(ctx context.Context) ([]admin.WorkerStats, error)
}

const (
	scrapeTimeout = 3 * time.Second
	scrapeEvery   = 10 * time.Second
)

// NewCollector returns a collector of the figures of a database, which the caller registers
// in one process, or in several that agree. A scrape reads the database if the last one that
// did is 10 s ago, and has the figures of that one otherwise. It may take 3 s, the limit of
// reading; further scrapes wait for it.
// When the database cannot be read waybill_database_up is 0, the other figures are left out,
// and the first error is logged. Nil discards the log. It panics on a nil database.
func NewCollector(db Database, log *slog.Logger) prometheus.Collector {
	if db == nil {
		panic(errors.New("wayprom: NewCollector needs a database"))
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &collector{db: db, log: log}
}

type collector struct {
	db  Database
	log *slog.Logger

	mu     sync.Mutex // held while the database is read
	readAt time.Time  // guarded by mu, as are all below
	last   []prometheus.Metric
	failed bool
}

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	up           = gauge("waybill_database_up", "1 if the figures of the database could be read, 0 if not.")
	pending      = gauge("waybill_outbox_pending", "Messages in the outbox, delayed ones left out.", "transport")
	oldestAge    = gauge("waybill_outbox_oldest_age_seconds", "Age of the oldest message in the outbox.", "transport")
	blockedKeys  = gauge("waybill_outbox_blocked_keys", "Blocked and parked keys and routes.", "transport")
	delayed      = gauge("waybill_outbox_delayed", "Messages that are not due yet.", "transport")
	failedOf     = gauge("waybill_failed_messages", "Dead letters, by their source: relay or worker.", "transport", "source")
	retrying     = gauge("waybill_retrying_messages", "Messages in the retry queue of a transport's workers, parked ones included.", "transport")
	parked       = gauge("waybill_parked_messages", "Messages in the retry queue that wait for a release.", "transport")
	queued       = gauge("waybill_queue_messages", "Messages of a queue in the database, those in flight included.", "queue")
	inFlight     = gauge("waybill_queue_in_flight", "Messages of a queue that a worker has and has not settled.", "queue")
	queueOldest  = gauge("waybill_queue_oldest_age_seconds", "Age of the oldest message of a queue.", "queue")
	descriptions = []*prometheus.Desc{up, pending, oldestAge, blockedKeys, delayed, failedOf, retrying, parked, queued, inFlight, queueOldest}
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range descriptions {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readAt.IsZero() || time.Since(c.readAt) >= scrapeEvery {
		c.read()
	}
	for _, m := range c.last {
		to <- m
	}
}

// read replaces the figures of the last scrape.
func (c *collector) read() {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	found, err := c.figures(ctx)
	if err != nil {
		found = []prometheus.Metric{of(up, 0)}
		if !c.failed {
			c.log.LogAttrs(ctx, slog.LevelWarn, "metrics of the database not read", slog.Any("err", err))
		}
	}
	c.last, c.failed, c.readAt = found, err != nil, time.Now()
}

func (c *collector) figures(ctx context.Context) ([]prometheus.Metric, error) {
	outbox, err := c.db.OutboxStats(ctx)
	if err != nil {
		return nil, err
	}
	queues, err := c.db.QueueStats(ctx)
	if err != nil {
		return nil, err
	}
	workers, err := c.db.WorkerStats(ctx)
	if err != nil {
		return nil, err
	}
	all := []prometheus.Metric{of(up, 1)}
	for _, s := range outbox {
		all = append(all, of(pending, s.Pending, s.Transport), of(oldestAge, s.OldestAgeSeconds, s.Transport), of(blockedKeys, s.BlockedKeys, s.Transport),
			of(delayed, s.Delayed, s.Transport), of(failedOf, s.Failed, s.Transport, "relay"))
	}
	for _, s := range queues {
		all = append(all, of(queued, s.Pending, s.Queue), of(inFlight, s.InFlight, s.Queue), of(queueOldest, s.OldestAgeSeconds, s.Queue))
	}
	for _, s := range workers {
		all = append(all, of(retrying, s.Retrying, s.Transport), of(parked, s.Parked, s.Transport), of(failedOf, s.Failed, s.Transport, "worker"))
	}
	return all, nil
}

func of[N int | float64](d *prometheus.Desc, value N, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
}
