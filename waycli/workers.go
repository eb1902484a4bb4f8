package waycli

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/worker"
)

// complete fills what the flags leave open from the configuration.
func (f *consumeFlags) complete(l config.Limits) {
	f.time = cmp.Or(f.time, duration(l.Time))
	f.memory = cmp.Or(f.memory, byteSize(l.Memory))
	f.failures = cmp.Or(f.failures, l.Failures)
	f.drain = cmp.Or(f.drain, duration(l.Drain))
	f.shared = l.Concurrency
}

func (f consumeFlags) limits() worker.Limits {
	return worker.Limits{Time: time.Duration(f.time), Memory: uint64(f.memory), Failures: f.failures}
}

// settingsOf returns the settings of a transport's worker, in which flags come first.
func settingsOf(cfg *config.Config, transport string, f consumeFlags) config.Worker {
	w := cfg.Workers[transport]
	return config.Worker{
		Concurrency: cmp.Or(f.concurrency, w.Concurrency, defaultConcurrency),
		Prefetch:    cmp.Or(f.prefetch, w.Prefetch),
		SlowHandler: w.SlowHandler,
	}
}

// defaultConcurrency is that of worker.Config.
const defaultConcurrency = 10

// workerConnections returns how many connections workers can use. Those of --exec use one
// for a short time each; handlers of the program may hold one while they run.
func (s *session) workerConnections(transports []string, f consumeFlags) (n int) {
	for _, name := range transports {
		n += settingsOf(s.cfg, name, f).Concurrency
	}
	if f.exec != "" {
		n = min(n, usefulConnections)
	}
	if f.shared > 0 {
		n = min(n, f.shared)
	}
	return n
}

// A workerWatch is what watches all workers of a process.
type workerWatch struct {
	counts  *counts
	limits  waybill.Observer
	process *worker.Process // may be nil
	slots   *worker.Slots   // may be nil
}

// watch returns a context that ends at a limit, or when an operator stops this process, and
// what watches the workers that run in it, which are reported. End is to be called when they have returned.
func (s *session) watch(ctx context.Context, f consumeFlags, counts *counts, reported bool) (limited context.Context, w workerWatch, end func(), err error) {
	w.counts = counts
	if reported && (f.exec != "" || s.chosen()) {
		db, err := s.database(ctx)
		if err != nil {
			return nil, w, nil, err
		}
		if w.process, err = worker.NewProcess(db, f.name, s.log); err != nil {
			return nil, w, nil, &Error{Usage, err, ""}
		}
	}
	if f.shared > 0 {
		if w.slots, err = worker.NewSlots(f.shared); err != nil {
			return nil, w, nil, err
		}
	}
	limited, limits, stopLimits := f.limits().Context(ctx)
	w.limits = limits
	softMemoryLimit(f.memory)
	limited, unregister := w.process.Context(limited)
	return limited, w, func() { unregister(); stopLimits() }, nil
}

// workers returns the Run of a worker for each transport.
func (s *session) workers(ctx context.Context, transports []string, f consumeFlags, watch workerWatch) (runs []func(context.Context) error, err error) {
	expired, err := s.expired(ctx, f)
	if err != nil {
		return nil, err
	}
	for _, name := range transports {
		w, err := s.worker(ctx, name, transports, f, watch, expired)
		if err != nil {
			return nil, err
		}
		runs, s.loops = append(runs, w.Run), append(s.loops, w.Alive)
	}
	return runs, nil
}

// worker returns the worker of one of the transports.
func (s *session) worker(ctx context.Context, name string, transports []string, f consumeFlags, watch workerWatch, expired worker.Inbox) (*worker.Worker, error) {
	bus, err := s.consumeBus(ctx, name, f)
	if err != nil {
		return nil, err
	}
	var key func(*waybill.Record) string
	if f.exec == "" {
		key = keyOf(bus)
	}
	settings := settingsOf(s.cfg, name, f)
	from, err := s.receiver(ctx, name, settings.Prefetch, key)
	if err != nil {
		return nil, err
	}
	store, err := s.workerStore(ctx, name, f)
	if err != nil {
		return nil, err
	}
	cfg := workerConfig(name, s.cfg.Transports[name], settings, f)
	if n := cmp.Or(f.concurrency, s.cfg.Workers[name].Concurrency); cfg.Prefetch > 0 && n > cfg.Prefetch {
		err := fmt.Errorf("transport %s: of %d messages at once %d are in flight at most, by the prefetch", name, n, cfg.Prefetch)
		return nil, &Error{Usage, err, "raise --prefetch, or take less --concurrency"}
	}
	cfg.Log, cfg.Observer, cfg.Inbox = s.log, waybill.Observers{watch.counts, watch.limits, s.observer()}, expired
	cfg.Process, cfg.Slots = watch.process, watch.slots
	cfg.Priority, cfg.Weight = s.cfg.Workers[name].Priority, s.cfg.Workers[name].Weight
	if f.strict {
		cfg.Priority = -slices.Index(transports, name)
	}
	cfg.Store, cfg.FailureTransport = store, s.cfg.FailureTransportOf(name)
	return worker.New(bus, from, cfg)
}

// expired returns the inbox that the workers prune: that of --exec, or of the configured
// database, which the handlers of a program are expected to share. A program without one
// runs without.
func (s *session) expired(ctx context.Context, f consumeFlags) (worker.Inbox, error) {
	if f.exec == "" && !s.chosen() {
		return nil, nil
	}
	db, err := s.database(ctx)
	switch {
	case err == nil:
		if shared, ok := s.service.inbox(db); ok {
			return shared, nil
		}
		return prunedInbox{db}, nil
	case f.exec == "":
		s.log.LogAttrs(ctx, slog.LevelWarn, "the inbox is not pruned by this process", slog.Any("err", err))
		return nil, nil
	}
	return nil, err
}

// A prunedInbox is an inbox on a pool of the commands. No handler holds one of its
// connections: those of a program have a pool of the program.
type prunedInbox struct{ inbox.Pruner }

// MaxConns implements worker.Inbox.
func (prunedInbox) MaxConns() int { return math.MaxInt }

func workerConfig(name string, t config.Transport, w config.Worker, f consumeFlags) worker.Config {
	cfg := worker.Config{
		Transport: name, Concurrency: w.Concurrency, Prefetch: w.Prefetch, SlowHandler: w.SlowHandler, Limit: f.limit,
		Idle: time.Duration(f.idle), Drain: time.Duration(f.drain), OnExhausted: worker.Policy(t.OnExhausted),
	}
	if cfg.Prefetch == 0 {
		cfg.Prefetch = t.DSN.Int("prefetch", 0) // which panics for a scheme without receivers
	}
	cfg.Retry, cfg.MaxRetries = retryOf(t.Retry)
	return cfg
}

// chosen reports whether the program has a database of this configuration: one that is
// named, or that its handlers use.
func (s *session) chosen() bool { return s.named() || s.service != nil && s.service.sharing }

// workerStore opens the database that keeps the failed messages of a transport. A program
// without one runs without.
func (s *session) workerStore(ctx context.Context, transport string, f consumeFlags) (worker.Store, error) {
	if f.exec == "" && !s.chosen() && s.cfg.Transports[transport].Store.IsZero() {
		return nil, nil
	}
	return s.storeOf(ctx, transport)
}

// storeOf opens the database of a transport's failed messages.
func (s *session) storeOf(ctx context.Context, transport string) (Database, error) {
	dsn := s.cfg.StoreOf(transport)
	if dsn.Equal(s.cfg.Database) {
		return s.database(ctx)
	}
	return s.open(ctx, dsn, "transports."+transport+".store")
}

// retryOf turns a transport's settings into a worker's, for which zero means a
// default.
func retryOf(r config.Retry) (waybill.Backoff, int) {
	b := waybill.Backoff{Delay: r.Delay, Multiplier: r.Multiplier, MaxDelay: r.MaxDelay, Jitter: r.Jitter}
	if r.Jitter == 0 {
		b.Jitter = -1
	}
	if r.MaxRetries == 0 {
		return b, -1
	}
	return b, r.MaxRetries
}
