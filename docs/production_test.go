package docs_test

import (
	"context"
	"log/slog"
	"os/signal"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

// Example_production compiles; it needs servers to run.
func Example_production() {
	bus, log := waybill.NewBus("billing"), slog.Default()
	events := wayamqp.Config{URL: "amqp://guest:guest@localhost:5672/", Exchange: "events"}
	billing := wayamqp.Config{URL: events.URL, Queue: "billing"}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	check(err)
	defer pool.Close()
	db, err := waypg.New(pool, waypg.Config{Log: log})
	check(err)
	defer db.Close()
	status, err := db.SchemaStatus(ctx)
	check(err)
	check(status.Err()) // the tables are missing, or of another version

	to, err := wayamqp.NewPublisher(events)
	check(err)
	defer to.Close()
	relay, err := outbox.NewRelay(db, to, outbox.RelayConfig{Transport: "events", Log: log})
	check(err)
	from, err := wayamqp.NewConsumer(billing)
	check(err)
	defer from.Close()
	w, err := worker.New(bus, from, worker.Config{Transport: "billing", Inbox: db, Log: log})
	check(err)

	ended := make(chan error, 2)
	go func() { ended <- relay.Run(ctx) }()
	go func() { ended <- w.Run(ctx) }()
	err = <-ended // after SIGTERM, or because one of them cannot work: then the other stops too
	stop()
	check(err)
	check(<-ended)
}

// A process that runs as the page says ends when an operator asks it to.
func TestProcessOfThePageIsStoppedByAnOperator(t *testing.T) {
	db, remove := openShop(t.Context())
	defer remove()
	bus, queue := waybill.NewBus("billing"), memory.NewDB().Queue("billing")
	waybill.Handle(bus, "bill", func(context.Context, OrderPlaced) error { return nil })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runReported(t.Context(), db, bus, queue, nil)
	}()
	eventually(t, "a process named billing", func() bool {
		found, err := db.Workers(t.Context())
		check(err)
		if len(found) == 0 {
			return false
		}
		n, err := db.StopWorkers(t.Context(), found[0].ID)
		return err == nil && n == 1 && found[0].Name == "billing"
	})
	<-ended
}

func runReported(ctx context.Context, db *waysqlite.DB, bus *waybill.Bus, queue waybill.Receiver, log *slog.Logger) {
	process, err := worker.NewProcess(db, "billing", log)
	check(err)
	ctx, end := process.Context(ctx) // ends at a request to stop, with worker.ErrStopRequested as its cause
	defer end()
	w, err := worker.New(bus, queue, worker.Config{Transport: "billing", Store: db, Process: process})
	check(err)
	check(w.Run(ctx))
}
