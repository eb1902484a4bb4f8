package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

var soakFor = flag.Duration("soak", 0, "how long TestSoakOfWorkers runs on each database; zero means 4 s, or 10 minutes with -long")

const (
	soakWorkers = 32
	soakHandles = 4   // pools of connections that the workers share
	soakBacklog = 200 // messages in both queues beyond which the dispatchers pause
)

// A soakLog counts the lines of workers, and keeps those about deadlocks.
type soakLog struct {
	mu        sync.Mutex
	lines     int
	deadlocks []string
}

func (l *soakLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines++
	if bytes.Contains(bytes.ToLower(b), []byte("deadlock")) {
		l.deadlocks = append(l.deadlocks, string(b))
	}
	return len(b), nil
}

// soakWorker is a worker on the queue effects: one attempt in 20 fails after its effect.
func soakWorker(db database, log *soakLog) (*worker.Worker, error) {
	bus := waybill.NewBus("main", waybill.Middleware{Name: "fail", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			if rand.IntN(20) == 0 {
				return errDown
			}
			return next(ctx, env)
		}
	}})
	db.handle(bus, func() {})
	q, err := db.leased("effects", 0)
	if err != nil {
		return nil, err
	}
	return worker.New(bus, q, worker.Config{
		Transport: "effects", Store: db, Concurrency: 2, MaxRetries: 1000, Log: slog.New(slog.NewTextHandler(log, nil)),
		Retry: waybill.Backoff{Delay: 50 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second},
	})
}

// Many workers share a queue and a retry queue for a long time, beside dispatchers: no
// deadlock shows, nothing accumulates, and each message has one effect, in order.
func TestSoakOfWorkers(t *testing.T) {
	// Not parallel: it measures the heap of the process.
	length := 4 * time.Second
	switch {
	case *soakFor > 0:
		length = *soakFor
	case *long:
		length = 10 * time.Minute
	}
	for _, on := range kinds {
		t.Run(on.name, func(t *testing.T) {
			s := on.stack(t)
			app, err := s.db.application(outbox.Config{To: "effects", Queues: map[string]string{"effects": "effects"}, Serializer: waybill.Serializer{Types: s.types}})
			s.must(err)
			s.app = app
			log := &soakLog{}
			stop := s.soakWorkers(log)
			heaps, dispatched, failed := s.soak(length, append(keyNames("k", 20), ""))
			drained := s.eventually(2*patience+length, "every message is handled", func() bool {
				time.Sleep(100 * time.Millisecond)
				return s.backlog().all() == 0
			})
			t.Logf("drained after %v", drained.Round(time.Millisecond))
			stop()
			s.workersHaveEnded()
			s.noFailures()
			sent, effects := s.count("SELECT count(*) FROM sent"), s.count("SELECT count(DISTINCT message_id) FROM effects")
			if all := s.count("SELECT count(*) FROM effects"); sent != effects || sent != all {
				t.Errorf("%d messages had %d effects, %d of them different", sent, all, effects)
			}
			if n := s.count("SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY k ORDER BY seq) AS p FROM effects WHERE k <> '') o WHERE p >= n"); n > 0 {
				t.Errorf("%d messages of a key were handled in the wrong order", n)
			}
			if len(log.deadlocks) > 0 {
				t.Errorf("%d deadlocks came to the surface, the first: %s", len(log.deadlocks), log.deadlocks[0])
			}
			t.Logf("%v, %d workers: %d messages in %d transactions (%d failed), %d lines of log, %d deadlocks, heap %v MB",
				length, soakWorkers, sent, dispatched, len(failed), log.lines, len(log.deadlocks), heaps)
			for _, err := range failed {
				t.Errorf("dispatch: %v", err)
			}
			if early, late := heaps[2], heaps[len(heaps)-1]; late > early*5/4+4 {
				t.Errorf("the heap grew from %d to %d MB: %v", early, late, heaps)
			}
		})
	}
}

// A backlog is how many messages wait.
type backlog struct{ queue, retries int }

func (s *stack) backlog() backlog {
	s.Helper()
	return backlog{s.count("SELECT count(*) FROM waybill_queue WHERE id > 0"), s.count("SELECT count(*) FROM waybill_retry WHERE id > 0")}
}

func (b backlog) all() int { return b.queue + b.retries }

func (b backlog) String() string {
	return fmt.Sprintf("%d wait in the queue, %d in the retry queue", b.queue, b.retries)
}

// soakLabel marks the goroutines of workers and of their databases: those of the
// stack's own connections, which drivers start and end as they like, do not count.
const soakLabel = "soak"

// workersHaveEnded waits until no goroutine of the workers and of their databases is left.
func (s *stack) workersHaveEnded() {
	s.Helper()
	var left []string
	defer func() {
		if s.Failed() {
			s.Log(strings.Join(left, "\n\n"))
		}
	}()
	s.eventually(patience, "the goroutines of the workers have ended", func() bool {
		var profile bytes.Buffer
		s.must(pprof.Lookup("goroutine").WriteTo(&profile, 1))
		left = slices.DeleteFunc(strings.Split(profile.String(), "\n\n"), func(stack string) bool {
			return !strings.Contains(stack, strconv.Quote(soakLabel)+":")
		})
		return len(left) == 0
	})
}

// soakWorkers runs workers until the function that it returns is called, which closes
// their databases.
func (s *stack) soakWorkers(log *soakLog) (stop func()) {
	s.Helper()
	defer pprof.SetGoroutineLabels(s.Context())
	pprof.SetGoroutineLabels(pprof.WithLabels(s.Context(), pprof.Labels(soakLabel, s.Name())))
	ctx, cancel := context.WithCancel(context.Background())
	var dbs []database
	for range soakHandles {
		db, err := s.on.open(s.Context(), s.database, opening{})
		s.must(err)
		dbs = append(dbs, db)
	}
	var wg sync.WaitGroup
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		for _, db := range dbs {
			s.must(db.Close())
		}
	})
	s.Cleanup(stop)
	for i := range soakWorkers {
		w, err := soakWorker(dbs[i%soakHandles], log)
		s.must(err)
		wg.Go(func() {
			if err := w.Run(ctx); err != nil {
				s.Errorf("Run = %v", err)
			}
		})
	}
	return stop
}

// soak dispatches for a time, and returns the size of the heap in MB at its tenths.
func (s *stack) soak(length time.Duration, keys []string) (heaps []uint64, dispatched int64, failed []error) {
	ctx, cancel := context.WithTimeout(s.Context(), length)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var done atomic.Int64
	for range 4 {
		wg.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				for n%50 == 0 && ctx.Err() == nil && s.backlog().all() > soakBacklog {
					time.Sleep(100 * time.Millisecond)
				}
				one, end := context.WithTimeout(context.WithoutCancel(ctx), patience)
				err := s.tryDispatch(one, keys[rand.IntN(len(keys)):][:1], 1+rand.IntN(2))
				end()
				if mu.Lock(); err != nil && len(failed) < 10 {
					failed = append(failed, err)
				}
				mu.Unlock()
				done.Add(1)
				select {
				case <-ctx.Done():
				case <-time.After(15 * time.Millisecond):
				}
			}
		})
	}
	for range 10 {
		time.Sleep(length / 10)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heaps = append(heaps, m.HeapAlloc>>20)
		s.Logf("%d MB; %s", m.HeapAlloc>>20, s.backlog())
	}
	wg.Wait()
	return heaps, done.Load(), failed
}
