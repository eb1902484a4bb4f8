package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/waysqlite"
)

type (
	nameless  struct{ OrderID string }
	badlyDone struct{ Order struct{ Done chan int } }
	spaced    struct{}
	orderGone struct{ Why string }
)

func (badlyDone) MessageName() string { return "order.done" }
func (orderGone) MessageName() string { return "order.gone" }
func (spaced) MessageName() string    { return "Order Placed" }

var mistakesInTheProgram = []mistake{
	{
		40, "a message has no name",
		dispatching(nameless{"o-1"}),
		[]string{"message type main.nameless", "give it a method MessageName() string or register it"},
	},
	{
		41, "a message is a pointer",
		func(t *testing.T) string {
			return dispatching(&orderPlaced{"o-1"})(t) + panicOf(func() {
				waybill.Handle(waybill.NewBus("shop"), "mail", func(context.Context, *orderPlaced) error { return nil })
			})
		},
		[]string{"message type *main.orderPlaced", "pass the struct itself"},
	},
	{
		42, "MessageName has a pointer receiver",
		dispatching(orderShipped{"o-1"}),
		[]string{"message type main.orderShipped: PartitionKey has a pointer receiver", "value receiver"},
	},
	{
		43, "a name has a space, a message is a text",
		func(t *testing.T) string { return dispatching(spaced{})(t) + "\n" + dispatching("order placed")(t) },
		[]string{`"Order Placed"`, "message type string"},
	},
	{
		44, "a message has a channel",
		dispatching(badlyDone{}),
		[]string{"encode main.badlyDone: field Order.Done: json: unsupported type: chan int", "give it another type, or the tag `json:\"-\"`"},
	},
	{
		45, "a body has 12 MB",
		dispatching(orderGone{strings.Repeat("x", 12_000_000)}),
		[]string{"body size of order.gone is 12000010, the limit is 1048576", "Limits.Body of the serializers on both sides raises it"},
	},
	{
		46, "a TransportNames stamp is misspelt",
		func(t *testing.T) string {
			out := newOutbox(t, withTables(t), outbox.Config{To: "events"})
			return refusal(t, dispatchIn(t, out, orderPlaced{"o-1"}, waybill.TransportNames{"evnts"}))
		},
		[]string{`unknown transport "evnts" for order.placed`, `did you mean "events"?`},
	},
	{
		47, "a unit of work is inside another",
		inUnit(func(ctx context.Context, out *outbox.Outbox[pgx.Tx], _ waypg.Tx) error {
			return out.InTx(ctx, func(context.Context, waypg.Tx) error { return nil })
		}),
		[]string{"a unit of work of this database is already open in this context: use its transaction"},
	},
	{
		48, "the function of a unit of work commits",
		inUnit(func(ctx context.Context, _ *outbox.Outbox[pgx.Tx], tx waypg.Tx) error { return tx.SQL().Commit(ctx) }),
		[]string{"a unit of work ends with its function: return an error to roll back"},
	},
	{
		49, "the function of a unit of work runs COMMIT",
		inUnit(func(ctx context.Context, _ *outbox.Outbox[pgx.Tx], tx waypg.Tx) error {
			_, err := tx.SQL().Exec(ctx, "COMMIT")
			return err
		}),
		[]string{"by a COMMIT or ROLLBACK of its own: nothing was dispatched, and a COMMIT has kept the statements before it"},
	},
	{
		50, "an error of a statement is ignored",
		inUnit(func(ctx context.Context, _ *outbox.Outbox[pgx.Tx], tx waypg.Tx) error {
			_, _ = tx.SQL().Exec(ctx, "INSERT INTO ordrs VALUES (1)")
			_, _ = tx.SQL().Exec(ctx, "INSERT INTO orders VALUES (1)")
			return nil
		}),
		[]string{"a statement of the unit of work failed and its error was ignored: nothing of it happened: INSERT INTO ordrs VALUES (1)", `relation "ordrs" does not exist`},
	},
	{
		51, "a transaction is used after its unit of work",
		func(t *testing.T) string {
			db := newPG(t)
			out, err := outbox.New(db, outbox.Config{})
			fatal(t, err)
			var kept waypg.Tx
			fatal(t, out.InTx(t.Context(), func(_ context.Context, tx waypg.Tx) error {
				kept = tx
				return nil
			}))
			_, err = kept.Dispatch(t.Context(), orderPlaced{"o-1"})
			return refusal(t, err)
		},
		[]string{"is over"},
	},
	{
		52, "a transaction is one of another database",
		func(t *testing.T) string {
			out, other := newOutbox(t, withTables(t), outbox.Config{}), newOutbox(t, withTables(t), outbox.Config{})
			return refusal(t, other.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
				_, err := out.Dispatch(ctx, tx.SQL(), orderPlaced{"o-1"})
				return err
			}))
		},
		[]string{"the transaction is one of ", "and the outbox is in "},
	},
	{
		53, "a unit of work is inside one of another database",
		func(t *testing.T) string {
			out, other := newOutbox(t, withTables(t), outbox.Config{}), newOutbox(t, withTables(t), outbox.Config{})
			return refusal(t, other.InTx(t.Context(), func(ctx context.Context, _ waysqlite.Tx) error {
				return dispatchUnder(ctx, out, orderPlaced{"o-1"})
			}))
		},
		[]string{"a unit of work of another database is open in this context, and the two would not commit together", "SeparateTransaction"},
	},
	{
		54, "a name has no route",
		func(t *testing.T) string {
			out := newOutbox(t, withTables(t), outbox.Config{Routes: waybill.Routes{"mail.*": {"mail"}}})
			return refusal(t, dispatchIn(t, out, orderPlaced{"o-1"}))
		},
		[]string{"no route for order.placed: add one, or set a default transport"},
	},
	{
		55, "a pattern has a * without a dot",
		func(t *testing.T) string {
			_, err := outbox.New(withTables(t), outbox.Config{Routes: waybill.Routes{"mail*": {"mail"}}})
			return refusal(t, err)
		},
		[]string{`route "mail*": a pattern is a name, a prefix with '.*', or '*'`},
	},
	{
		56, "stamps stand where they have no effect",
		func(t *testing.T) string {
			derived := dispatching(orderPlaced{"o-1"}, waybill.DerivedID("receipt"))(t)
			bus := waybill.NewBus("shop")
			waybill.Handle(bus, "mail", func(context.Context, orderPlaced) error { return nil })
			_, err := bus.Dispatch(t.Context(), orderPlaced{"o-1"}, waybill.Delay(time.Minute))
			return derived + "\n" + refusal(t, err)
		},
		[]string{"DerivedID needs the context given to a handler", `delay of order.placed "1m0s": nothing routes it`},
	},
	{
		57, "two handlers have one name",
		func(*testing.T) string {
			return panicOf(func() {
				bus := waybill.NewBus("shop")
				for range 2 {
					waybill.Handle(bus, "mail", func(context.Context, orderPlaced) error { return nil })
				}
			})
		},
		[]string{"bus shop", "mail", "order.placed"},
	},
	{
		58, "a bus routes to a sender that is not there",
		func(t *testing.T) string {
			bus := waybill.NewBus("shop")
			bus.AddSender("events", memory.NewDB().Queue("events"))
			bus.Route("order.*", "evnts")
			_, err := bus.Dispatch(t.Context(), orderPlaced{"o-1"})
			return refusal(t, err)
		},
		[]string{`bus shop: unknown transport "evnts"`, `did you mean "events"?`, "AddSender adds one"},
	},
}

// dispatching dispatches a message to the outbox of a database.
func dispatching(msg any, stamps ...waybill.Stamp) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		return refusal(t, dispatchIn(t, newOutbox(t, withTables(t), outbox.Config{}), msg, stamps...))
	}
}

// inUnit runs a function in a unit of work of PostgreSQL.
func inUnit(fn func(context.Context, *outbox.Outbox[pgx.Tx], waypg.Tx) error) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		out, err := outbox.New(newPG(t), outbox.Config{})
		fatal(t, err)
		return refusal(t, out.InTx(t.Context(), func(ctx context.Context, tx waypg.Tx) error {
			if _, err := tx.Dispatch(ctx, orderPlaced{"o-1"}); err != nil {
				return err
			}
			return fn(ctx, out, tx)
		}))
	}
}

func newPG(t *testing.T) *waypg.DB {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testserver.Postgres(t))
	fatal(t, err)
	t.Cleanup(pool.Close)
	db, err := waypg.New(pool, waypg.Config{})
	fatal(t, err)
	_, err = db.SchemaUp(t.Context())
	fatal(t, err)
	return db
}

// withTables returns an empty database with the tables.
func withTables(t *testing.T) *waysqlite.DB {
	t.Helper()
	db := openDB(t)
	_, err := db.SchemaUp(t.Context())
	fatal(t, err)
	return db
}

func newOutbox(t *testing.T, db *waysqlite.DB, cfg outbox.Config) *outbox.Outbox[*sql.Tx] {
	t.Helper()
	out, err := outbox.New(db, cfg)
	fatal(t, err)
	return out
}

// dispatchIn dispatches a message in a unit of work.
func dispatchIn(t *testing.T, out *outbox.Outbox[*sql.Tx], msg any, stamps ...waybill.Stamp) error {
	t.Helper()
	return dispatchUnder(t.Context(), out, msg, stamps...)
}

func dispatchUnder(ctx context.Context, out *outbox.Outbox[*sql.Tx], msg any, stamps ...waybill.Stamp) error {
	return out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
		_, err := tx.Dispatch(ctx, msg, stamps...)
		return err
	})
}

// panicOf returns the text of the panic of a function.
func panicOf(f func()) (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	f()
	return ""
}
