package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/worker"
)

// batches keeps the batches of a handler, each sorted, and their times.
type batches struct {
	mu   sync.Mutex
	got  []string
	at   []time.Duration
	from time.Time
}

func (b *batches) note(jobs []job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	for _, j := range jobs {
		names = append(names, j.String())
	}
	slices.Sort(names)
	b.got, b.at = append(b.got, strings.Join(names, " ")), append(b.at, time.Since(b.from))
}

func TestBatchRunsWhenItIsFullOrAfterItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, seen := newFixture(t), &batches{from: time.Now()}
		p.cfg.Concurrency = 8
		waybill.HandleBatch(p.bus, "bulk", 3, time.Second, func(_ context.Context, jobs []job) []error {
			seen.note(jobs)
			return nil
		})
		p.send(job{"a", 1}, job{"b", 1}, job{"c", 1}, job{"d", 1})
		stop := p.start(p.queue)
		time.Sleep(5 * time.Second)
		p.send(job{"e", 1}, job{"e", 2}) // messages of one key share no batch
		time.Sleep(5 * time.Second)
		noError(t, stop())
		if len(seen.got) != 4 || strings.Count(seen.got[0], " ") != 2 || !slices.Equal(seen.got[2:], []string{"e1", "e2"}) || !slices.Equal(seen.at, []time.Duration{0, time.Second, 6 * time.Second, 7 * time.Second}) {
			t.Errorf("batches %q at %v, want three messages at once, one after a second, and two alone", seen.got, seen.at)
		}
		p.wantBacklog(0)
	})
}

// A group and a batch fill if as many messages run at once as they have at most. Where fewer
// can, the worker says so once, when the first message comes: what never fills is only slow.
func TestGroupOrBatchAboveTheConcurrencyIsWarnedOf(t *testing.T) {
	const size = 3
	kinds := map[string]func(*fixture){
		"batch": func(p *fixture) {
			waybill.HandleBatch(p.bus, "gather", size, time.Second, func(context.Context, []job) []error { return nil })
		},
		"group": func(p *fixture) {
			inbox.Handle(p.bus, p.db, "gather", func(context.Context, *memory.Tx, job) error { return nil }, inbox.Group(size), inbox.Option{Linger: time.Second})
		},
	}
	for _, c := range []struct {
		concurrency, slots int
		warns              string
		took               time.Duration
	}{
		{concurrency: size},
		{concurrency: size, slots: size},
		{concurrency: size - 1, warns: "size=3 concurrency=2", took: 3 * time.Second},
		{concurrency: size, slots: size - 1, warns: "size=3 concurrency=2", took: 3 * time.Second},
	} {
		for kind, handle := range kinds {
			t.Run(fmt.Sprintf("%s, concurrency %d, slots %d", kind, c.concurrency, c.slots), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newFixture(t)
					var log bytes.Buffer
					p.cfg.Concurrency, p.cfg.Limit, p.cfg.Log = c.concurrency, 6, slog.New(slog.NewTextHandler(&log, nil))
					if c.slots > 0 {
						var err error
						p.cfg.Slots, err = worker.NewSlots(c.slots)
						noError(t, err)
					}
					handle(p)
					for k := range 6 {
						p.send(job{fmt.Sprint("k", k), 1})
					}
					start := time.Now()
					noError(t, p.run(p.queue))
					if took := time.Since(start); took.Round(time.Second) != c.took {
						t.Errorf("six messages took %v, want %v", took, c.took)
					}
					want := "a group or batch never fills: set the concurrency to its size at least, or make it smaller\" transport=jobs handler=gather " + c.warns
					if got := strings.Contains(log.String(), want); got != (c.warns != "") || strings.Count(log.String(), "never fills") > 1 {
						t.Errorf("want %q once:\n%s", c.warns, &log)
					}
					p.wantBacklog(0)
				})
			})
		}
	}
}

func TestHandlerOptionIsNotNegative(t *testing.T) {
	defer func() {
		if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), `handler "do" gathers -1 messages`) {
			t.Errorf("panic %v", v)
		}
	}()
	waybill.Handle(waybill.NewBus("main"), "do", func(context.Context, job) error { return nil }, waybill.HandlerOption{Gathers: -1})
}

// Each message of a batch has its own result: a failed one is retried, in the order of its key.
func TestMessagesOfABatchHaveTheirOwnResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency = 4
		p.cfg.Retry = waybill.Backoff{Delay: time.Second, Jitter: -1}
		var mu sync.Mutex
		attempts, order := map[string]int{}, []string{}
		waybill.HandleBatch(p.bus, "bulk", 4, 100*time.Millisecond, func(_ context.Context, jobs []job) []error {
			mu.Lock()
			defer mu.Unlock()
			errs := make([]error, len(jobs))
			for i, j := range jobs {
				if attempts[j.String()]++; j.String() == "b1" && attempts["b1"] < 3 {
					errs[i] = errDeclined
				} else if j.K == "b" {
					order = append(order, j.String())
				}
			}
			return errs
		})
		p.send(job{"a", 1}, job{"b", 1}, job{"b", 2}, job{"c", 1}, job{"d", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		noError(t, stop())
		if diff := cmp.Diff(map[string]int{"a1": 1, "b1": 3, "b2": 1, "c1": 1, "d1": 1}, attempts); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		if !cmp.Equal(order, []string{"b1", "b2"}) {
			t.Errorf("key b was handled as %v", order)
		}
		p.wantBacklog(0)
	})
}

// Whatever ends the handler is the error of each message, and nothing hangs.
func TestBatchThatEndsBadlyFailsItsMessages(t *testing.T) {
	for want, end := range map[string]func(n int) []error{
		"panic: boom": func(int) []error { panic("boom") },
		"returned 1 results for 3 messages: return nil, or an error or nil for each": func(int) []error { return make([]error, 1) },
		"ended its goroutine": func(int) []error { runtime.Goexit(); return nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newFixture(t)
			p.cfg.Concurrency, p.cfg.Limit = 3, 3
			waybill.HandleBatch(p.bus, "bulk", 3, time.Second, func(_ context.Context, jobs []job) []error { return end(len(jobs)) })
			p.send(job{"a", 1}, job{"b", 1}, job{"c", 1})
			noError(t, p.run(p.queue))
			for _, e := range p.of(waybill.Handled) {
				if e.Err == nil || !strings.Contains(e.Err.Error(), want) && !strings.Contains(e.Err.Error(), "Goexit") {
					t.Errorf("%s: %v, want an error with %s", e.ID, e.Err, want)
				}
			}
			p.wantBacklog(3)
		})
	}
}

// Handlers that outlive the drain time are told so, by the context of the batch.
func TestContextOfABatchEndsWithThoseOfItsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.cfg.Concurrency, p.cfg.Drain = 2, time.Second
		waybill.HandleBatch(p.bus, "bulk", 2, time.Second, func(ctx context.Context, jobs []job) []error {
			<-ctx.Done()
			return []error{ctx.Err(), ctx.Err()}
		})
		p.send(job{"a", 1}, job{"b", 1})
		stop := p.start(p.queue)
		time.Sleep(time.Minute)
		noError(t, stop())
		p.wantBacklog(2)
	})
}

func TestBatchOfADispatchRunsAtOnceAndAlone(t *testing.T) {
	bus := waybill.NewBus("main")
	waybill.HandleBatch(bus, "bulk", 2, time.Hour, func(_ context.Context, jobs []job) []error {
		if len(jobs) != 1 {
			t.Errorf("got %v", jobs)
		}
		return []error{errDeclined}
	})
	if _, err := bus.Dispatch(t.Context(), job{"a", 1}); err == nil || !strings.Contains(err.Error(), "declined") {
		t.Errorf("Dispatch = %v, want the handler's error", err)
	}
	for _, bad := range []struct {
		size int
		wait time.Duration
	}{{1, time.Second}, {10001, time.Second}, {2, 0}} {
		func() {
			defer func() {
				if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), "want 2 to 10000, and above zero") {
					t.Errorf("HandleBatch with %v: panic %v", bad, v)
				}
			}()
			waybill.HandleBatch(bus, "other", bad.size, bad.wait, func(context.Context, []job) []error { return nil })
		}()
	}
}

func TestGatheringEndsWithTheContextsOfItsMessages(t *testing.T) {
	for name, handle := range map[string]func(*fixture){
		"batch": func(p *fixture) {
			waybill.HandleBatch(p.bus, "gather", 2, time.Minute, func(context.Context, []job) []error { return nil })
		},
		"group": func(p *fixture) {
			inbox.Handle(p.bus, p.db, "gather", func(context.Context, *memory.Tx, job) error { return nil }, inbox.Group(2), inbox.Option{Linger: time.Minute})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFixture(t)
				p.cfg.Drain = time.Second
				handle(p)
				p.send(job{"a", 1})
				stop := p.start(p.queue)
				synctest.Wait()
				noError(t, stop())
				p.wantBacklog(1)
			})
		})
	}
}
