package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverQueue is River with a job for each message, whose worker publishes it and
// waits for the confirm.
type riverQueue struct {
	label  string
	db     *database
	broker *broker
	keys   int
	log    *slog.Logger

	// workers is QueueConfig.MaxWorkers, cooldown and poll are
	// Config.FetchCooldown and Config.FetchPollInterval.
	workers        int
	cooldown, poll time.Duration
}

// riverDefaults leaves FetchCooldown at 100 ms and FetchPollInterval at 1 s.
// MaxWorkers has no default: the documentation's examples have 100.
//   - https://pkg.go.dev/github.com/riverqueue/river@v0.51.0#Config
//   - https://pkg.go.dev/github.com/riverqueue/river@v0.51.0#hdr-Starting_a_client
func riverDefaults(db *database, b *broker, keys int, stderr io.Writer) *riverQueue {
	return &riverQueue{label: "river, defaults", db: db, broker: b, keys: keys, log: riverLog(stderr), workers: 100}
}

// riverTuned has the settings of River's own benchmark, whose source says that
// they do much better than the defaults. A larger MaxWorkers means more confirms
// in flight.
//   - https://riverqueue.com/docs/benchmarks, "with 2,000 worker goroutines"
//   - https://github.com/riverqueue/river/blob/007f941bd0061dac1e8ba0467cc29f191fb78dd4/cmd/river/riverbench/river_bench.go
func riverTuned(db *database, b *broker, keys int, stderr io.Writer) *riverQueue {
	r := riverDefaults(db, b, keys, stderr)
	r.label = "river, tuned"
	r.workers = 2000
	r.cooldown = 2 * time.Millisecond
	r.poll = 20 * time.Millisecond
	return r
}

func prepareRiver(ctx context.Context, db *database, stderr io.Writer) error {
	m, err := rivermigrate.New(riverpgxv5.New(db.pool), &rivermigrate.Config{Schema: db.schema, Logger: riverLog(stderr)})
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func riverLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelError}))
}

func (r *riverQueue) name() string { return r.label }

func (r *riverQueue) load(ctx context.Context, n int) error {
	if err := r.db.exec(ctx, "TRUNCATE river_job"); err != nil {
		return err
	}
	client, err := river.NewClient(riverpgxv5.New(r.db.pool), &river.Config{Schema: r.db.schema, Logger: r.log})
	if err != nil {
		return err
	}
	err = batches(n, r.keys, loadBatch, func(ms []placed) error {
		jobs := make([]river.InsertManyParams, len(ms))
		for i, m := range ms {
			jobs[i].Args = m
		}
		_, err := client.InsertManyFast(ctx, jobs)
		return err
	})
	if err != nil {
		return err
	}
	return r.db.exec(ctx, "VACUUM ANALYZE river_job")
}

func (r *riverQueue) relay(ctx context.Context, n int) (_ time.Duration, err error) {
	conn, ch, err := r.broker.confirming()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	count := newCountdown(n)
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, &publishWorker{ch: ch, exchange: r.broker.name, count: count}); err != nil {
		return 0, err
	}
	client, err := r.client(workers)
	if err != nil {
		return 0, err
	}

	start := time.Now()
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	err = count.wait(ctx, nil)
	took := time.Since(start)

	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := errors.Join(err, client.Stop(stopping)); err != nil {
		return 0, err
	}
	return took, r.db.until(ctx, "SELECT count(*) = 0 FROM river_job WHERE state <> 'completed'")
}

func (r *riverQueue) client(workers *river.Workers) (*river.Client[pgx.Tx], error) {
	return river.NewClient(riverpgxv5.New(r.db.pool), &river.Config{
		Schema:            r.db.schema,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: r.workers}},
		Workers:           workers,
		FetchCooldown:     r.cooldown,
		FetchPollInterval: r.poll,
		Logger:            r.log,
	})
}

// publishWorker publishes a job's message. All of them share a channel, so their
// confirms overlap.
type publishWorker struct {
	river.WorkerDefaults[placed]
	ch       *amqp.Channel
	exchange string
	count    *countdown
}

func (w *publishWorker) Work(ctx context.Context, job *river.Job[placed]) error {
	body, err := job.Args.body()
	if err != nil {
		return err
	}
	confirm, err := w.ch.PublishWithDeferredConfirmWithContext(ctx, w.exchange, messageName, false, false, amqp.Publishing{
		MessageId: fmt.Sprint(job.ID), Type: messageName, ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: job.CreatedAt, Body: body,
	})
	if err != nil {
		return err
	}
	acked, err := confirm.WaitContext(ctx)
	if err != nil {
		return err
	}
	if !acked {
		return errors.New("the broker refused the message")
	}
	w.count.confirmed(1)
	return nil
}
