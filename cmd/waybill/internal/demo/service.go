package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
)

// service is the database of the order service or of the billing service, with
// the demo's table of steps in it.
type service interface {
	outbox.Store
	// place writes one step of an order and dispatches msg, in one transaction
	// that refuse, if it is not nil, rolls back. A transaction that is held has
	// the message in its tables at once and stays open for so long.
	place(ctx context.Context, s step, msg any, hold time.Duration, refuse error) error
	// serve registers the handlers of billing.
	serve(bus *waybill.Bus, b *billing)
	// steps returns the written steps, in the order of writing.
	steps(ctx context.Context) ([]step, error)
	// pending returns the messages in the outbox.
	pending(ctx context.Context) ([]waybill.MessageID, error)
	// dsn is that of the database, for the configuration of a relay.
	dsn() string
	// holds reports whether transactions may be held open beside others.
	holds() bool
	close() error
}

// step is one message as the order service or the billing service wrote it down.
type step struct {
	order, step int
	id          waybill.MessageID
}

// backend is a service on a database whose transactions are of type TX.
type backend[TX any] struct {
	outbox.Store
	out    *outbox.Outbox[TX]
	inbox  inbox.Store[TX]
	name   string // of the database, as a DSN
	shared bool   // transactions run beside each other

	insert func(ctx context.Context, tx TX, s step) error
	own    func(ctx context.Context, fn func(tx TX) error) error // a transaction of the application's own
	read   func(ctx context.Context, what string) ([]step, error)
	end    func() error
}

// The queries for read.
const (
	readSteps  = "SELECT order_id, step, message_id FROM demo_steps ORDER BY n"
	readOutbox = "SELECT 0, 0, message_id FROM waybill_outbox WHERE id > 0"
)

func (b *backend[TX]) place(ctx context.Context, s step, msg any, hold time.Duration, refuse error) error {
	if hold == 0 {
		return b.out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[TX]) error {
			if err := b.insert(ctx, tx.SQL(), s); err != nil {
				return err
			}
			_, err := tx.Dispatch(ctx, msg, s.id)
			return errors.Join(err, refuse)
		})
	}
	return b.own(ctx, func(tx TX) error {
		if err := b.insert(ctx, tx, s); err != nil {
			return err
		}
		if _, err := b.out.Dispatch(ctx, tx, msg, s.id); err != nil {
			return err
		}
		pause(ctx, hold)
		return refuse
	})
}

func (b *backend[TX]) serve(bus *waybill.Bus, to *billing) {
	handle(b, bus, to, func(m orderPlaced) (int, int) { return m.Order, m.Step })
	handle(b, bus, to, func(m orderPaid) (int, int) { return m.Order, m.Step })
	handle(b, bus, to, func(m orderShipped) (int, int) { return m.Order, m.Step })
}

// handle registers the handler of one message type: it writes an effect, and
// sometimes fails after that.
func handle[TX, M any](db *backend[TX], bus *waybill.Bus, b *billing, what func(M) (order, step int)) {
	inbox.Handle(bus, db.inbox, "billing", func(ctx context.Context, tx TX, m M) error {
		s := step{}
		s.order, s.step = what(m)
		s.id, _ = waybill.Last[waybill.MessageID](waybill.EnvelopeFrom(ctx))
		if err := db.insert(ctx, tx, s); err != nil {
			return err
		}
		return b.outcome()
	})
}

func (b *backend[TX]) steps(ctx context.Context) ([]step, error) { return b.read(ctx, readSteps) }

func (b *backend[TX]) pending(ctx context.Context) ([]waybill.MessageID, error) {
	rows, err := b.read(ctx, readOutbox)
	ids := make([]waybill.MessageID, len(rows))
	for i, row := range rows {
		ids[i] = row.id
	}
	return ids, err
}

func (b *backend[TX]) dsn() string  { return b.name }
func (b *backend[TX]) holds() bool  { return b.shared }
func (b *backend[TX]) close() error { return b.end() }

// readRows is read by database/sql.
func readRows(ctx context.Context, db *sql.DB, query string) ([]step, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []step
	for rows.Next() {
		var s step
		if err := rows.Scan(&s.order, &s.step, &s.id); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// newOutbox makes the outbox of a service; billing's is never used.
func newOutbox[TX any](db outbox.Writer[TX]) (*outbox.Outbox[TX], error) {
	out, err := outbox.New(db, outbox.Config{To: transport})
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	return out, nil
}
