package waycli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
)

func (s *session) settingFindings(context.Context) ([]admin.Finding, error) {
	return s.fileFindings(s.cfg), nil
}

// restart is how long a dependency of a handler may be away while it is restarted.
const restart = time.Minute

// grace is how long Kubernetes waits after SIGTERM by default; systemd waits for 90 s.
const grace = 30 * time.Second

// fileFindings are those of the configuration alone: config check notes them, too.
func (s *session) fileFindings(cfg *config.Config) (found []admin.Finding) {
	for _, note := range s.notes(cfg) {
		found = append(found, admin.NewFinding(admin.UnusableSetting, note, "change the setting, or use a binary that can open it"))
	}
	for _, name := range transportNames(cfg) {
		if retry := cfg.Transports[name].Retry; retry.MaxRetries > 0 && retry.Window() < restart {
			found = append(found, admin.NewFinding(admin.ShortRetries,
				fmt.Sprintf("transports.%s.retry: the retries end after %s, which is less than a restart of what a handler calls may take: its messages become dead letters, or are parked with their keys", pathKey(name), config.FormatDuration(retry.Window())),
				"raise max_retries, delay or multiplier, or leave retry out: the default covers 16 minutes"))
		}
	}
	if drain := cfg.Limits.Drain; drain >= grace {
		found = append(found, admin.NewFinding(admin.TerminationGrace,
			fmt.Sprintf("limits.drain is %s: Kubernetes kills a process 30s after SIGTERM, systemd after 90s, unless they are told otherwise, which cannot be seen from here", config.FormatDuration(drain)),
			"have terminationGracePeriodSeconds or TimeoutStopSec above it, or leave limits.drain out"))
	}
	for i := range found {
		found[i].Where = cmp.Or(s.configFile(), "the default configuration")
	}
	return found
}

// databaseFindings are those of the configured database and of the stores of transports.
func (s *session) databaseFindings(ctx context.Context) ([]admin.Finding, error) {
	stores, err := s.stores(ctx)
	if err != nil {
		return nil, err
	}
	var found []admin.Finding
	for _, db := range stores {
		examiner, ok := db.Database.(admin.Examiner)
		if !ok {
			continue
		}
		more, err := examiner.Findings(ctx)
		if err != nil {
			return nil, err
		}
		for _, f := range more {
			f.Where = db.name
			found = append(found, f)
		}
	}
	return found, nil
}

// retentionFindings compare the retention that applications have recorded in the database
// with the retries of transports. That of the file is checked as the file is read.
func (s *session) retentionFindings(ctx context.Context) ([]admin.Finding, error) {
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	recorded, err := db.InboxRetention(ctx)
	if err != nil || recorded == 0 {
		return nil, err
	}
	var found []admin.Finding
	for _, name := range transportNames(s.cfg) {
		if window := s.cfg.Transports[name].Retry.Window(); recorded <= window {
			f := admin.NewFinding(admin.ShortRetention,
				fmt.Sprintf("the inbox forgets a message after %s, as the applications that use it have recorded, and it is retried for %s", config.FormatDuration(recorded), config.FormatDuration(window)),
				fmt.Sprintf("give the applications a longer Retention, or transports.%s.retry fewer or shorter delays", pathKey(name)))
			f.Where = fmt.Sprintf("transport %q", name)
			found = append(found, f)
		}
	}
	return found, nil
}

// longHandler is half of the time after which RabbitMQ by default takes an unacknowledged
// message back (consumer_timeout).
const longHandler = 15 * time.Minute

// muchHeap is the memory of a worker that should have a limit.
const muchHeap = 512 << 20

// workerFindings are workers that grow without a limit, and messages of brokers that have
// been handled for very long.
func (s *session) workerFindings(ctx context.Context) ([]admin.Finding, error) {
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	workers, err := workersOf(ctx, db)
	if err != nil {
		return nil, err
	}
	var found []admin.Finding
	for _, w := range workers {
		if s.cfg.Limits.Memory == 0 && w.HeapBytes >= muchHeap {
			f := admin.NewFinding(admin.UnboundedWorker,
				fmt.Sprintf("process %d on %s has %d MiB in use, and no limit: if it grows on, the system kills it in the middle of a message", w.PID, w.Host, w.HeapBytes>>20),
				"set limits.memory, so that it ends in good order and its supervisor starts the next")
			f.Where = fmt.Sprintf("worker %q", w.Name)
			found = append(found, f)
		}
		for _, m := range w.Running {
			t, ok := s.cfg.Transports[m.Transport]
			if !ok || ownTransport(t.DSN) || m.Seconds < longHandler.Seconds() {
				continue
			}
			f := admin.NewFinding(admin.LongHandler,
				fmt.Sprintf("process %d on %s has been handling %s %s in %s for %s: a broker takes a message back that is not acknowledged in time, RabbitMQ after 30 minutes (consumer_timeout)", w.PID, w.Host, m.Name, m.ID, cmp.Or(m.Handler, "no handler yet"), seconds(m.Seconds)),
				"let the handler dispatch parts of its work as messages of their own, or use a queue:// transport, whose leases are renewed")
			f.Where = fmt.Sprintf("transport %q", m.Transport)
			found = append(found, f)
		}
	}
	return found, nil
}

// pauseFindings are the paused transports.
func (s *session) pauseFindings(ctx context.Context) (found []admin.Finding, err error) {
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	paused, err := db.PausedTransports(ctx)
	for _, p := range paused {
		f := admin.NewFinding(admin.PausedTransport, "its workers handle no messages: it is paused since "+pauseOrigin(p),
			fmt.Sprintf("`%s workers resume %s` when the reason is gone", s.app.Name, visible(p.Transport)))
		f.Where = fmt.Sprintf("transport %q", p.Transport)
		found = append(found, f)
	}
	return found, err
}

// overdue is the age of a pending message from which on a relay should have published it.
const overdue = time.Minute

// relayFindings compares the reports of relays with the messages that wait.
func (s *session) relayFindings(ctx context.Context) ([]admin.Finding, error) {
	db, err := s.database(ctx)
	if err != nil || !db.Traits().KeepsReports {
		return nil, err
	}
	relays, err := db.Relays(ctx)
	if err != nil {
		return nil, err
	}
	stats, err := db.OutboxStats(ctx)
	if err != nil {
		return nil, err
	}
	var found []admin.Finding
	add := func(code admin.Code, transport, problem, remedy string) {
		f := admin.NewFinding(code, problem, remedy)
		f.Where = fmt.Sprintf("transport %q", transport)
		found = append(found, f)
	}
	for _, r := range relays {
		if why := cmp.Or(r.Problem, r.Degraded); why != "" && r.Ago(r.SeenAt) <= silence {
			add(admin.RelayProblem, r.Transport, fmt.Sprintf("the relay of process %d on %s reports: %s", r.PID, r.Host, why), "mend the broker, database or connection it names; the relay tries again by itself")
		}
	}
	for _, t := range withoutRelay(stats, relays) {
		if t.OldestAgeSeconds > overdue.Seconds() {
			add(admin.NoRelay, t.Transport, fmt.Sprintf("no relay reports, and the oldest of %s has waited for %s", plural(t.Pending, "message"), seconds(t.OldestAgeSeconds)),
				fmt.Sprintf("run `%s relay`, or look into the log of the process that should", s.app.Name))
		}
	}
	return found, nil
}
