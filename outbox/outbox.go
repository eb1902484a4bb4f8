package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
	"github.com/waybill-go/waybill/internal/suggest"
)

// DefaultTransport is the transport used when Config or RelayConfig names none.
const DefaultTransport = "default"

// Config sets up an Outbox. The zero value sends every message to
// DefaultTransport.
type Config struct {
	// To is the transport of messages that no route matches. Empty means
	// DefaultTransport without Routes, and an error at dispatch with them.
	To string
	// Routes sends messages to transports by name.
	Routes waybill.Routes
	// Queues maps the transports that are queues of the outbox's own database to
	// the queue's name.
	Queues map[string]string
	// Transports are further names that a TransportNames stamp may use.
	Transports []string
	// Serializer encodes; its Types need only hold types without a MessageName.
	Serializer waybill.Serializer
	// Middleware surrounds every dispatch, the first outermost.
	Middleware []waybill.Middleware
	// Observer receives an event for every message written. Nil means none.
	Observer waybill.Observer
}

// An Outbox dispatches messages inside transactions of type TX. It is safe for
// concurrent use.
type Outbox[TX any] struct {
	writer     Writer[TX]
	to         []string
	routes     waybill.Routes
	queues     map[string]string
	known      map[string]bool
	serializer waybill.Serializer
	chain      waybill.HandlerFunc // nil without middleware
	observer   waybill.Observers
}

// New returns an outbox on w. It registers the transports of cfg with the database.
func New[TX any](w Writer[TX], cfg Config) (*Outbox[TX], error) {
	if any(w) == nil {
		return nil, errors.New("outbox: New needs a database")
	}
	if err := cfg.Routes.Validate(); err != nil {
		return nil, err
	}
	o := &Outbox[TX]{writer: w, routes: cfg.Routes, queues: cfg.Queues, known: map[string]bool{}, serializer: cfg.Serializer, observer: waybill.Observers{cfg.Observer}}
	if len(cfg.Routes) == 0 {
		cfg.To = cmp.Or(cfg.To, DefaultTransport)
	}
	if cfg.To != "" {
		o.to = []string{cfg.To}
	}
	for name, queue := range cfg.Queues {
		if queue == "" {
			return nil, fmt.Errorf("outbox: config: the queue of transport %q has no name", name)
		}
	}
	for _, names := range slices.Concat([][]string{o.to, cfg.Transports, slices.Collect(maps.Keys(cfg.Queues))}, slices.Collect(maps.Values(cfg.Routes))) {
		if err := o.know(names); err != nil {
			return nil, err
		}
	}
	if len(cfg.Middleware) > 0 {
		o.chain = keepEnvelope
		for _, m := range slices.Backward(cfg.Middleware) {
			o.chain = m.Wrap(o.chain)
		}
	}
	if err := w.AddTransports(context.Background(), slices.Sorted(maps.Keys(o.known))...); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return o, nil
}

// know adds names of transports. It refuses a name that a database would refuse, or keep for
// good with a line end of the environment.
func (o *Outbox[TX]) know(names []string) error {
	for _, name := range names {
		if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("outbox: config: %q is no name of a transport: want 1 to %d bytes of UTF-8 without control characters", name, maxName)
		}
		if o.queues[name] == "" {
			o.known[name] = true
		}
	}
	return nil
}

const maxName = 190 // of a transport, in bytes

// A Tx is a unit of work: a transaction and the messages dispatched in it. It
// belongs to one goroutine and ends with the function it was given to.
type Tx[TX any] struct {
	outbox *Outbox[TX]
	tx     TX
}

// SQL returns the database's transaction, for the application's own statements.
func (t Tx[TX]) SQL() TX { return t.tx }

// Dispatch adds msg to the unit of work: it is sent if and only if the unit
// commits.
func (t Tx[TX]) Dispatch(ctx context.Context, msg any, stamps ...waybill.Stamp) (waybill.MessageID, error) {
	return t.outbox.Dispatch(ctx, t.tx, msg, stamps...)
}

// Savepoint runs fn so that its error undoes just its own statements and
// messages. Savepoints set by the application's own statements do not undo
// messages.
func (t Tx[TX]) Savepoint(ctx context.Context, fn func(ctx context.Context) error) error {
	return t.outbox.writer.Savepoint(ctx, t.tx, fn)
}

// InTx runs fn in a new transaction and commits it, with the messages
// dispatched in it as the last statements. An error of fn rolls back and is
// returned; nothing has happened then. InTx inside InTx, or inside an inbox
// handler of the same database, is refused with waybill.ErrNestedTransaction; inside one
// of another database with waybill.ErrForeignTransaction, except in the context of
// waybill.SeparateTransaction.
//
// An error that wraps waybill.ErrCommitUnknown says that the answer to COMMIT
// was lost; the *waybill.CommitUnknownError has the messages' ids.
func (o *Outbox[TX]) InTx(ctx context.Context, fn func(ctx context.Context, tx Tx[TX]) error) error {
	err := o.writer.InTx(ctx, func(ctx context.Context, tx TX) error {
		err := fn(ctx, Tx[TX]{o, tx})
		crash.At(crash.DispatchBeforeCommit)
		return err
	})
	crash.At(crash.DispatchAfterCommit)
	return err
}

// Savepoint is Tx.Savepoint for a transaction of type TX, such as an inbox handler's.
func (o *Outbox[TX]) Savepoint(ctx context.Context, tx TX, fn func(ctx context.Context) error) error {
	return o.writer.Savepoint(ctx, tx, fn)
}

// Dispatch sends msg if and only if tx commits, and returns its id. In a unit of
// work (InTx, an inbox handler) it joins that; in any other transaction it is
// written at once, so call it last there. An error means that msg was not
// dispatched; outside a unit of work it must end the transaction.
func (o *Outbox[TX]) Dispatch(ctx context.Context, tx TX, msg any, stamps ...waybill.Stamp) (waybill.MessageID, error) {
	ids, err := o.DispatchAll(ctx, tx, waybill.NewEnvelope(msg, stamps...))
	if err != nil {
		return waybill.MessageID{}, err
	}
	return ids[0], nil
}

// DispatchAll is Dispatch for several messages at once, each a struct or an
// *waybill.Envelope; they keep their order. On an error none was dispatched.
func (o *Outbox[TX]) DispatchAll(ctx context.Context, tx TX, msgs ...any) ([]waybill.MessageID, error) {
	ids := make([]waybill.MessageID, len(msgs))
	rows := make([]Row, 0, len(msgs))
	unique := false
	for i, msg := range msgs {
		first := len(rows)
		var err error
		if rows, err = o.appendRows(ctx, rows, msg); err != nil {
			return nil, err
		}
		ids[i] = rows[first].Record.ID
		unique = unique || rows[first].Unique != nil
	}
	if unique {
		held, err := o.holders(ctx, tx, rows)
		if err != nil {
			return nil, err
		}
		message := -1
		for i, row := range rows {
			if i == 0 || rows[i-1].Record != row.Record {
				message++
			}
			if holder, ok := held[row.Record]; ok {
				ids[message] = holder
			}
		}
		rows = slices.DeleteFunc(rows, func(row Row) bool { return !held[row.Record].IsZero() })
	}
	if len(rows) == 0 && unique {
		return ids, nil
	}
	for i, row := range rows {
		if i == 0 || rows[i-1].Record != row.Record {
			o.observer.Begin(ctx, waybill.Dispatched, row.Transport, row.Record)
		}
	}
	if err := o.writer.Write(ctx, tx, rows...); err != nil {
		return nil, fmt.Errorf("outbox: dispatch: %w", err)
	}
	for _, row := range rows {
		o.observer.Observe(ctx, waybill.Event{Kind: waybill.Dispatched, ID: row.Record.ID, Name: row.Record.Name, Key: row.Record.Key, Transport: row.Transport, Record: row.Record})
	}
	return ids, nil
}

// appendRows appends the rows of one message: one for each of its transports, the first
// with its unique key.
func (o *Outbox[TX]) appendRows(ctx context.Context, rows []Row, msg any) ([]Row, error) {
	env, err := o.prepare(ctx, waybill.NewEnvelope(msg))
	if err != nil {
		return nil, err
	}
	rec, err := o.serializer.Encode(env)
	if err != nil {
		return nil, err
	}
	to, err := o.transports(env, rec.Name)
	if err != nil {
		return nil, err
	}
	first := len(rows)
	for _, name := range to {
		rows = append(rows, Row{Record: rec, Transport: name, Queue: o.queues[name]})
	}
	rows[first].Unique, err = uniqueKey(env, rec.Name)
	return rows, err
}

func (o *Outbox[TX]) transports(env *waybill.Envelope, name string) ([]string, error) {
	to := o.routes.For(name)
	if to == nil {
		to = o.to
	}
	if override, ok := waybill.Last[waybill.TransportNames](env); ok {
		if err := override.Validate(); err != nil {
			return nil, err
		}
		to = override
	}
	if len(to) == 0 {
		return nil, fmt.Errorf("outbox: no route for %s: add one, or set a default transport", name)
	}
	for _, t := range to {
		if !o.known[t] && o.queues[t] == "" {
			all := slices.Sorted(maps.Keys(o.known))
			all = append(all, slices.Sorted(maps.Keys(o.queues))...)
			return nil, fmt.Errorf("outbox: unknown transport %q for %s: %s; further ones stand in outbox.Config.Transports", t, name, suggest.Hint(t, all, "transports"))
		}
	}
	return to, nil
}

// prepare runs the middleware and returns the envelope that reaches its inner end.
func (o *Outbox[TX]) prepare(ctx context.Context, env *waybill.Envelope) (*waybill.Envelope, error) {
	env, err := o.serializer.Prepare(ctx, env)
	if err != nil || o.chain == nil {
		return env, err
	}
	var kept *waybill.Envelope
	if err := o.chain(context.WithValue(ctx, keptKey{}, &kept), env); err != nil {
		return nil, err
	}
	if kept == nil {
		return nil, errDropped
	}
	return kept, nil
}

// keptKey is the context key of the variable for the envelope at the inner end.
type keptKey struct{}

func keepEnvelope(ctx context.Context, env *waybill.Envelope) error {
	kept, ok := ctx.Value(keptKey{}).(**waybill.Envelope)
	if !ok {
		return errors.New("outbox: a middleware passed another context on: derive it from the one it was given, as by context.WithoutCancel")
	}
	*kept = env
	return nil
}

var errDropped = errors.New("outbox: a middleware swallowed the message without an error")
