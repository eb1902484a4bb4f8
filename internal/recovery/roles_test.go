package recovery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/worker"
)

// A process of the campaign is this test binary again, in a role.
const (
	roleEnv     = "WAYBILL_RECOVERY_ROLE"
	databaseEnv = "WAYBILL_RECOVERY_DATABASE"
	brokerEnv   = "WAYBILL_RECOVERY_BROKER"
	paceEnv     = "WAYBILL_RECOVERY_PACE"
)

const (
	keys        = 20
	dispatchers = 8
	transport   = "events"
)

// counted is the n-th thing that happened to a key.
type counted struct {
	Key string
	N   int
}

func (counted) MessageName() string    { return "key.counted" }
func (m counted) PartitionKey() string { return m.Key }

// play runs a role until SIGTERM and returns the exit code.
func play(role string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	run := map[string]func(context.Context, service) error{"dispatch": dispatch, "work": work}[role]
	db, err := open(ctx, os.Getenv(databaseEnv))
	if err == nil {
		err = run(ctx, db)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		return 1
	}
	return 0
}

// dispatch is an application with 8 goroutines. Each transaction counts a key
// up, under its row's lock, and dispatches the number.
func dispatch(ctx context.Context, db service) error {
	count, err := db.counter()
	if err != nil {
		return err
	}
	pace, err := time.ParseDuration(os.Getenv(paceEnv))
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range dispatchers {
		wg.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				key := fmt.Sprint("key-", rand.IntN(keys))
				one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				err := count(one, key)
				cancel()
				// A transaction that fails, or whose end is unknown, is not repeated:
				// the table of what is committed tells.
				if err != nil && !errors.Is(err, waybill.ErrUnavailable) && !errors.Is(err, waybill.ErrCommitUnknown) && !errors.Is(err, context.DeadlineExceeded) {
					fmt.Fprintln(os.Stderr, "dispatch:", err)
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// work is a consumer whose handler writes one row.
func work(ctx context.Context, db service) error {
	address, queue, _ := strings.Cut(os.Getenv(brokerEnv), "|")
	consumer, err := wayamqp.NewConsumer(wayamqp.Config{URL: address, Queue: queue, Prefetch: 100})
	if err != nil {
		return err
	}
	defer func() { _ = consumer.Close() }()
	bus := waybill.NewBus("recovery")
	db.handle(bus, inbox.Option{Observer: duplicates{db}})
	w, err := worker.New(bus, consumer, worker.Config{Transport: transport, Concurrency: 8, Prefetch: 100, Retry: waybill.Backoff{Delay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// duplicates counts what the inbox suppressed, in the database.
type duplicates struct{ db service }

func (d duplicates) Observe(ctx context.Context, e waybill.Event) {
	if e.Kind == waybill.Duplicate {
		d.db.suppressed(ctx, e.ID)
	}
}
