package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

var mistakesAtWork = []mistake{
	{
		59, "a program names no queue, and options in the URL",
		func(t *testing.T) string {
			_, noQueue := wayamqp.NewConsumer(wayamqp.Config{URL: "amqp://localhost"})
			_, options := wayamqp.NewPublisher(wayamqp.Config{URL: "amqp://localhost?heartbeat=5", Exchange: "events"})
			return refusal(t, noQueue) + "\n" + refusal(t, options)
		},
		[]string{"Queue", "URL"},
	},
	{
		60, "an exchange is there with another type",
		func(t *testing.T) string {
			dsn := testserver.RabbitMQ(t)
			command(0, "transports: { events: { dsn: '"+dsn+"?exchange=events' } }", "schema", "up", "--transports")(t)
			writeFile(t, "waybill.yaml", "transports: { events: { dsn: '"+dsn+"?exchange=events&type=fanout' } }")
			return say(t, 2, "schema", "up", "--transports")
		},
		[]string{`transport "events": exchange events (fanout): it is there with other properties`, "what was declared stays"},
	},
	{
		61, "a binding leads to a missing exchange",
		func(t *testing.T) string {
			return command(2, "transports: { work: { dsn: '"+testserver.RabbitMQ(t)+"?queue=work&bind=evnts:order.placed' } }", "schema", "up", "--transports")(t)
		},
		[]string{`transport "work": binding evnts:order.placed -> work`, "no exchange 'evnts'"},
	},
	{
		62, "a virtual host is unknown",
		func(t *testing.T) string {
			u := parseURL(t, testserver.RabbitMQ(t))
			u.Path = "/nope"
			return command(6, "transports: { work: { dsn: '"+u.String()+"?queue=work' } }", "schema", "up", "--transports")(t)
		},
		[]string{`transport "work": unavailable: connect: `, "vhost nope not found", "create the virtual host, or mend the path of the URL"},
	},
	{
		63, "a number of a config is negative",
		func(t *testing.T) string {
			_, atWorker := worker.New(mailBus(), memory.NewDB().Queue("mail"), worker.Config{Concurrency: -1})
			_, atRelay := outbox.NewRelay(withTables(t), queueOf(t), outbox.RelayConfig{Batch: -5})
			return refusal(t, atWorker) + "\n" + refusal(t, atRelay)
		},
		[]string{"worker: config: Concurrency is negative (-1): leave it zero for the default", "outbox: relay config: Batch is negative (-5): leave it zero for the default"},
	},
	{
		64, "a worker has a bus without handlers",
		func(t *testing.T) string {
			_, err := worker.New(waybill.NewBus("shop"), memory.NewDB().Queue("mail"), worker.Config{})
			return refusal(t, err)
		},
		[]string{"bus shop has no handlers, so every message would fail: register them with waybill.Handle or inbox.Handle before worker.New"},
	},
	{
		65, "a group is larger than the concurrency",
		func(t *testing.T) string {
			db := memory.NewDB()
			bus, queue := waybill.NewBus("shop"), db.Queue("mail")
			bus.AddSender("mail", queue)
			bus.Route("*", "mail")
			inbox.Handle(bus, db, "billing", func(context.Context, *memory.Tx, orderPlaced) error { return nil }, inbox.Group(50))
			return workingAt(t, t.Context(), bus, queue, worker.Config{Concurrency: 4, Limit: 1})
		},
		[]string{"a group or batch never fills: set the concurrency to its size at least, or make it smaller", "transport=mail handler=billing size=50 concurrency=4"},
	},
	{
		66, "a relay has a transport that is misspelt",
		func(t *testing.T) string {
			db := withTables(t)
			fatal(t, dispatchIn(t, newOutbox(t, db, outbox.Config{To: "events"}), orderPlaced{"o-1"}))
			var log bytes.Buffer
			relay, err := outbox.NewRelay(db, queueOf(t), outbox.RelayConfig{Transport: "evnts", Drain: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
			fatal(t, err)
			fatal(t, relay.Run(t.Context()))
			return log.String()
		},
		[]string{"nothing dispatches to this transport: no outbox has registered its name yet", "transport=evnts known=[events]"},
	},
	{
		67, "a transaction is nil",
		func(t *testing.T) string {
			_, err := newOutbox(t, withTables(t), outbox.Config{}).Dispatch(t.Context(), nil, orderPlaced{"o-1"})
			return refusal(t, err)
		},
		[]string{"transaction is nil"},
	},
	{
		68, "a handler ignores its context",
		func(t *testing.T) string {
			ctx, cancel := context.WithCancel(t.Context())
			end := make(chan struct{})
			t.Cleanup(func() { close(end) })
			return working(t, ctx, worker.Config{Drain: 20 * time.Millisecond}, func(context.Context, orderPlaced) error {
				cancel()
				<-end
				return nil
			})
		},
		[]string{"1 handlers ignore the end of their context", "mail", "order.placed", "their messages come again"},
	},
	{
		69, "a message cannot be handled ever, and there is no store",
		func(t *testing.T) string {
			return working(t, t.Context(), worker.Config{Limit: 1}, func(context.Context, orderPlaced) error {
				return waybill.Unrecoverable(errors.New("the card is stolen"))
			})
		},
		[]string{"the card is stolen", "unrecoverably, and is retried for ever: only a worker with a Store has dead letters"},
	},
	{
		70, "a handler panics",
		func(t *testing.T) string {
			return working(t, t.Context(), worker.Config{Limit: 1}, func(context.Context, orderPlaced) error { panic("no such card") })
		},
		[]string{"panic", "no such card", "mistakes_worker_test.go"},
	},
	{
		71, "another program publishes without an id",
		func(t *testing.T) string {
			dsn, ch := withQueue(t, nil)
			fatal(t, ch.PublishWithContext(t.Context(), "", "work", false, false, amqp.Publishing{Type: "order.placed", Body: []byte("{}")}))
			return command(0, "transports: { work: { dsn: '"+dsn+"?queue=work&exchange=work' } }\nmessages: { order.placed: {} }", "schema", "up")(t) +
				say(t, 0, "consume", "work", "--exec", "true", "--limit", "1")
		},
		[]string{"the message has no id: want a UUID or ULID as the property message_id"},
	},
	{
		72, "a message on its way has an unknown name",
		func(t *testing.T) string {
			return consumed(t, "INSERT INTO waybill_queue (queue, message_id, message_name, body) VALUES ('mail', x'00000000000000000000000000000001', 'order.plcaed', '{}')")
		},
		[]string{`unknown message name`, "order.plcaed", "order.placed"},
	},
	{
		73, "no queue is bound",
		func(t *testing.T) string {
			return blockedAt(t, testserver.RabbitMQ(t)+"?exchange=events", true)
		},
		[]string{"exchange", "events", "order.placed", "312 NO_ROUTE: no queue is bound for it"},
	},
	{
		74, "a queue is full",
		func(t *testing.T) string {
			dsn, ch := withQueue(t, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
			fatal(t, ch.PublishWithContext(t.Context(), "", "work", false, false, amqp.Publishing{Body: []byte("{}")}))
			return blockedAt(t, dsn+"?exchange=work", false)
		},
		[]string{"the broker refused it (nack)", `exchange \"work\", routing key \"order.placed\"`, "is a queue bound there full, or unavailable?"},
	},
	{
		75, "a message is older than the inbox remembers",
		func(t *testing.T) string {
			return consumed(t, "INSERT INTO waybill_queue (queue, message_id, message_name, body, created_at) VALUES ('mail', x'01890a5dac96774bbcceb302099a8060', 'order.placed', '{}', 1)")
		},
		[]string{"too old to prove that it was not handled", "raise the retention (inbox.retention)"},
	},
	{
		76, "SQL dispatches to an unknown transport",
		func(t *testing.T) string { return inSQL(t, "{}", "evnts") },
		[]string{"evnts", "the outbox knows: "},
	},
	{
		77, "SQL dispatches a body that is not JSON",
		func(t *testing.T) string { return inSQL(t, "{bad", "default") },
		[]string{"JSON", "a body of another kind names it in headers"},
	},
}

func mailBus() *waybill.Bus {
	bus := waybill.NewBus("shop")
	waybill.Handle(bus, "mail", func(context.Context, orderPlaced) error { return nil })
	return bus
}

// queueOf returns a queue in a database by itself.
func queueOf(t *testing.T) *waysqlite.Queue {
	t.Helper()
	q, err := withTables(t).Queue("events", waysqlite.QueueConfig{})
	fatal(t, err)
	return q
}

// working returns the log and the error of a worker that gets one message.
func working(t *testing.T, ctx context.Context, cfg worker.Config, handle func(context.Context, orderPlaced) error) string {
	t.Helper()
	bus, queue := waybill.NewBus("shop"), memory.NewDB().Queue("mail")
	bus.AddSender("mail", queue)
	bus.Route("*", "mail")
	waybill.Handle(bus, "mail", handle)
	return workingAt(t, ctx, bus, queue, cfg)
}

func workingAt(t *testing.T, ctx context.Context, bus *waybill.Bus, queue *memory.Queue, cfg worker.Config) string {
	t.Helper()
	_, err := bus.Dispatch(t.Context(), orderPlaced{"o-1"})
	fatal(t, err)
	var log transcript
	cfg.Transport, cfg.Log = "mail", slog.New(slog.NewTextHandler(&log, nil))
	w, err := worker.New(bus, queue, cfg)
	fatal(t, err)
	if err := w.Run(ctx); err != nil {
		return log.String() + err.Error()
	}
	return log.String()
}

// consumed has a worker take a row of a queue.
func consumed(t *testing.T, insert string) string {
	t.Helper()
	t.Chdir(t.TempDir())
	writeFile(t, "waybill.yaml", mailFile)
	say(t, 0, "schema", "up")
	db, err := sql.Open("sqlite", "waybill.db")
	fatal(t, err)
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(t.Context(), insert)
	fatal(t, err)
	return say(t, 0, "consume", "mail", "--exec", "true", "--limit", "1")
}

// withQueue makes the queue work, bound to an exchange of its name.
func withQueue(t *testing.T, args amqp.Table) (dsn string, ch *amqp.Channel) {
	t.Helper()
	dsn = testserver.RabbitMQ(t)
	conn, err := amqp.Dial(dsn)
	fatal(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err = conn.Channel()
	fatal(t, err)
	_, err = ch.QueueDeclare("work", true, false, false, false, args)
	fatal(t, err)
	fatal(t, ch.ExchangeDeclare("work", "topic", true, false, false, false, nil))
	fatal(t, ch.QueueBind("work", "#", "work", false, nil))
	return dsn, ch
}

// blockedAt returns the blocked keys after a relay has tried a message once.
func blockedAt(t *testing.T, dsn string, declare bool) string {
	t.Helper()
	t.Chdir(t.TempDir())
	writeFile(t, "waybill.yaml", "transports: { events: { dsn: '"+dsn+"' } }\nmessages: { order.placed: {} }")
	up := []string{"schema", "up"}
	if declare {
		up = append(up, "--transports")
	}
	say(t, 0, up...)
	say(t, 0, "dispatch", "order.placed", "{}", "--key", "o-1")
	return say(t, 5, "relay", "--drain") + say(t, 0, "outbox", "blocked", "--json")
}

// inSQL dispatches by the function of PostgreSQL, and returns its error with the hint.
func inSQL(t *testing.T, body, transport string) string {
	t.Helper()
	db := newPG(t)
	out, err := outbox.New(db, outbox.Config{})
	fatal(t, err)
	fatal(t, out.InTx(t.Context(), func(context.Context, waypg.Tx) error { return nil }))
	_, err = db.Pool().Exec(t.Context(), "SELECT waybill_dispatch('order.placed', '', '{}', convert_to($1, 'UTF8'), $2)", body, transport)
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		t.Fatalf("waybill_dispatch = %v, want an error", err)
	}
	return refused.Message + "\nHINT: " + refused.Hint
}
