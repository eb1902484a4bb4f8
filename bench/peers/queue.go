package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	wb "github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

// inserters is how many goroutines insert messages into a queue, each message in a
// transaction of its own, while it is being worked.
const inserters = 8

// queueWorkers is waybill's Config.Concurrency in the contest of queues.
const queueWorkers = 50

// insertAll has the inserters insert n messages.
func insertAll(ctx context.Context, n, keys int, insert func(ctx context.Context, m placed) error) error {
	var wg sync.WaitGroup
	errs := make([]error, inserters)
	for first := range errs {
		wg.Go(func() {
			for i := first; i < n && errs[first] == nil; i += inserters {
				errs[first] = insert(ctx, newPlaced(i, keys))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// A handledCount counts how often each message was handled.
type handledCount struct {
	*countdown
	of []atomic.Int32
}

func newHandledCount(n int) *handledCount {
	return &handledCount{newCountdown(n), make([]atomic.Int32, n)}
}

func (c *handledCount) add(m placed) error {
	if m.N < 0 || m.N >= len(c.of) || len(m.Pad) == 0 {
		return fmt.Errorf("a message came that nobody sent: %d", m.N)
	}
	if c.of[m.N].Add(1) == 1 {
		c.confirmed(1)
	}
	return nil
}

// duplicates is how many messages were handled more than once.
func (c *handledCount) duplicates() (n int) {
	for i := range c.of {
		if c.of[i].Load() > 1 {
			n++
		}
	}
	return n
}

// waybillWorker is queue:// of this repository with a worker. Its lease, polling and
// prefetch are the defaults.
type waybillWorker struct {
	*waybill
	twice int
}

func (w *waybillWorker) name() string { return "waybill, queue://" }

func (w *waybillWorker) load(ctx context.Context, _ int) error {
	return w.db.exec(ctx, "TRUNCATE waybill_queue")
}

func (w *waybillWorker) duplicates() int { return w.twice }

func (w *waybillWorker) relay(ctx context.Context, n int) (time.Duration, error) {
	queue, err := w.store.Queue("queue", waypg.QueueConfig{})
	if err != nil {
		return 0, err
	}
	count := newHandledCount(n)
	bus := wb.NewBus("peers")
	bus.AddSender("queue", queue)
	bus.Route("*", "queue")
	wb.Handle(bus, "peers", func(_ context.Context, m placed) error { return count.add(m) })
	work, err := worker.New(bus, queue, worker.Config{Transport: "queue", Concurrency: queueWorkers, Limit: n})
	if err != nil {
		return 0, err
	}
	inserted := make(chan error, 1)
	start := time.Now()
	go func() {
		inserted <- insertAll(ctx, n, w.keys, func(ctx context.Context, m placed) error {
			_, err := bus.Dispatch(ctx, m)
			return err
		})
	}()
	err = errors.Join(work.Run(ctx), ctx.Err())
	took := time.Since(start)
	if err = errors.Join(err, <-inserted); err != nil {
		return 0, err
	}
	w.twice = count.duplicates()
	return took, w.db.until(ctx, "SELECT count(*) = 0 FROM waybill_queue")
}

// riverJobs is River as a queue: a job for each message, inserted by itself.
type riverJobs struct {
	*riverQueue
	twice int
}

func (r *riverJobs) load(ctx context.Context, _ int) error {
	return r.db.exec(ctx, "TRUNCATE river_job")
}

func (r *riverJobs) duplicates() int { return r.twice }

func (r *riverJobs) relay(ctx context.Context, n int) (time.Duration, error) {
	count := newHandledCount(n)
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, &countWorker{count: count}); err != nil {
		return 0, err
	}
	client, err := r.client(workers)
	if err != nil {
		return 0, err
	}
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	err = insertAll(ctx, n, r.keys, func(ctx context.Context, m placed) error {
		_, err := client.Insert(ctx, m, nil)
		return err
	})
	if err == nil {
		err = count.wait(ctx, nil)
	}
	took := time.Since(start)
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := errors.Join(err, client.Stop(stopping)); err != nil {
		return 0, err
	}
	r.twice = count.duplicates()
	return took, r.db.until(ctx, "SELECT count(*) = 0 FROM river_job WHERE state <> 'completed'")
}

// countWorker handles a job by counting it.
type countWorker struct {
	river.WorkerDefaults[placed]
	count *handledCount
}

func (w *countWorker) Work(_ context.Context, job *river.Job[placed]) error {
	return w.count.add(job.Args)
}

// claimLoop is no library: loops that lease a batch of a table, handle it and delete it.
type claimLoop struct {
	db    *database
	keys  int
	twice int
}

func (p *claimLoop) name() string    { return "claim-batch loop, written by hand" }
func (p *claimLoop) duplicates() int { return p.twice }

func (p *claimLoop) load(ctx context.Context, _ int) error {
	return p.db.exec(ctx, `CREATE TABLE IF NOT EXISTS jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_name text NOT NULL, partition_key text NOT NULL,
		headers jsonb NOT NULL, body jsonb NOT NULL, attempts int NOT NULL DEFAULT 0, locked_until timestamptz NOT NULL DEFAULT '-infinity')`, "TRUNCATE jobs")
}

func (p *claimLoop) relay(ctx context.Context, n int) (time.Duration, error) {
	count := newHandledCount(n)
	inserted := make(chan error, 1)
	start := time.Now()
	go func() {
		inserted <- insertAll(ctx, n, p.keys, func(ctx context.Context, m placed) error {
			_, err := p.db.pool.Exec(ctx, "INSERT INTO jobs (message_name, partition_key, headers, body) VALUES ($1, $2, '{}', $3)", messageName, m.Key, m)
			return err
		})
	}()
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		wg.Go(func() {
			for errs[i] == nil && count.left.Load() > 0 {
				errs[i] = p.batch(ctx, count)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	p.twice = count.duplicates()
	return took, errors.Join(append(errs, <-inserted)...)
}

func (p *claimLoop) batch(ctx context.Context, count *handledCount) error {
	rows, err := p.db.pool.Query(ctx, `UPDATE jobs SET locked_until = now() + interval '15 s', attempts = attempts + 1
		WHERE id = ANY (ARRAY(SELECT id FROM jobs WHERE locked_until <= now() ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED)) RETURNING id, body`)
	if err != nil {
		return err
	}
	var ids []int64
	var id int64
	var m placed
	if _, err := pgx.ForEachRow(rows, []any{&id, &m}, func() error { ids = append(ids, id); return count.add(m) }); err != nil {
		return err
	}
	if len(ids) == 0 {
		time.Sleep(5 * time.Millisecond)
		return nil
	}
	_, err = p.db.pool.Exec(ctx, "DELETE FROM jobs WHERE id = ANY ($1)", ids)
	return err
}

// queuePeers returns the contestants of the queues, waybill first, and why others could not
// take part.
func queuePeers(ctx context.Context, db *database, us *waybill, url string, stderr io.Writer) (contestant, []contestant, []string, error) {
	if err := prepareRiver(ctx, db, stderr); err != nil {
		return nil, nil, nil, err
	}
	them := []contestant{
		&riverJobs{riverQueue: riverDefaults(db, nil, us.keys, stderr)},
		&riverJobs{riverQueue: riverTuned(db, nil, us.keys, stderr)},
		&claimLoop{db: db, keys: us.keys},
	}
	var missing []string
	for _, processes := range []int{1, 4} {
		s := &symfony{db: db, url: url, keys: us.keys, processes: processes}
		if err := s.check(ctx, "setup"); err != nil {
			missing = append(missing, fmt.Sprintf("%s: not measured: %v", s.name(), err))
			continue
		}
		them = append(them, s)
	}
	return &waybillWorker{waybill: us}, them, missing, nil
}
