package waycli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
)

// A message is a message to dispatch, in the form of a line of JSON Lines.
type message struct {
	Name    string            `json:"name"`
	Key     string            `json:"key"`
	Body    json.RawMessage   `json:"body"`
	Headers map[string]string `json:"headers"`
	ID      string            `json:"id"`
	Delay   string            `json:"delay"`
}

// A prepared is a message that has passed all checks before its transaction.
type prepared struct {
	env        *waybill.Envelope
	id         waybill.MessageID
	name, key  string
	transports []string
	bytes      int
}

// A dispatcher prepares messages and commits them.
type dispatcher struct {
	s          *session
	to         string // of --to, or empty
	serializer waybill.Serializer
	decodes    bool // the names have Go types here
	out        outbox.Config
	commitAll  Dispatch
}

func (s *session) newDispatcher(ctx context.Context, to string) (*dispatcher, error) {
	cfg, err := s.config()
	if err != nil {
		return nil, err
	}
	d := &dispatcher{s: s, to: to}
	if s.app.Bus != nil {
		bus, err := s.bus(ctx)
		if err != nil {
			return nil, err
		}
		d.serializer, d.decodes = *bus.Serializer(), true
	} else {
		d.serializer.Types = waybill.NewTypes()
		d.serializer.Types.AllowRaw(messageNames(cfg)...)
	}
	if to != "" {
		if _, err := s.transport(to); err != nil {
			return nil, err
		}
	}
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	if d.out, err = addressedOutbox(cfg, to); err != nil {
		return nil, err
	}
	d.out.Serializer, d.out.Observer = d.serializer, s.observer()
	d.commitAll, err = db.Dispatcher(d.out)
	return d, err
}

// NewDispatch makes the Dispatch of an outbox. It is for the packages of drivers.
func NewDispatch[TX any](db outbox.Writer[TX], cfg outbox.Config) (Dispatch, error) {
	out, err := outbox.New(db, cfg)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, msgs ...any) (ids []waybill.MessageID, err error) {
		err = out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[TX]) error {
			ids, err = out.DispatchAll(ctx, tx.SQL(), msgs...)
			return err
		})
		return ids, err
	}, nil
}

// addressedOutbox is outboxOf with the transport of messages without a route, or else the
// given one. It returns an error if messages would have neither.
func addressedOutbox(cfg *config.Config, otherwise string) (out outbox.Config, err error) {
	out = outboxOf(cfg)
	if out.To, err = cfg.OutboxTransport(); err != nil {
		if len(cfg.Routing) == 0 && otherwise == "" {
			return out, err
		}
		out.To = otherwise
	}
	return out, nil
}

// outboxOf returns the routes, queues and transports of cfg.
func outboxOf(cfg *config.Config) outbox.Config {
	out := outbox.Config{Routes: cfg.Routing, Queues: map[string]string{}}
	for _, name := range transportNames(cfg) {
		switch dsn := cfg.Transports[name].DSN; {
		case inDatabase(dsn, cfg.Database):
			out.Queues[name] = dsn.Host
		case !inProcess(dsn):
			out.Transports = append(out.Transports, name)
		}
	}
	return out
}

// checkName refuses a name that is not on the list.
func (d *dispatcher) checkName(name string) error {
	_, err := d.serializer.Types.NameOf(waybill.RawMessage{Name: name})
	return err
}

// prepare checks m, so that its transaction has no reason to refuse it.
func (d *dispatcher) prepare(m message) (prepared, error) {
	if err := d.checkName(m.Name); err != nil {
		return prepared{}, err
	}
	to, err := d.route(m.Name)
	if err != nil {
		return prepared{}, err
	}
	if m.Body == nil {
		return prepared{}, errors.New("it has no body")
	}
	if m.Key, err = d.keyOf(m); err != nil {
		return prepared{}, err
	}
	stamps, id, err := d.stamps(m)
	if err != nil {
		return prepared{}, err
	}
	env := waybill.NewEnvelope(waybill.RawMessage{Name: m.Name, Key: m.Key, Body: m.Body}, stamps...)
	rec, err := d.serializer.Encode(env)
	if err != nil {
		return prepared{}, err
	}
	return prepared{env, id, rec.Name, rec.Key, to, len(rec.Body)}, nil
}

func (d *dispatcher) stamps(m message) (stamps []waybill.Stamp, id waybill.MessageID, err error) {
	if m.ID != "" {
		id, err = waybill.ParseMessageID(m.ID)
	} else {
		id, err = waybill.NewMessageID()
	}
	if err != nil {
		return nil, id, err
	}
	stamps = append(stamps, id)
	if m.Delay != "" {
		delay, err := config.ParseDuration(m.Delay)
		if err != nil {
			return nil, id, fmt.Errorf("delay: %w", err)
		}
		stamps = append(stamps, waybill.Delay(delay))
	}
	for name, value := range m.Headers {
		stamps = append(stamps, waybill.Header(name, value))
	}
	if d.to != "" {
		stamps = append(stamps, waybill.TransportNames{d.to})
	}
	return stamps, id, nil
}

// keyOf returns the partition key. If the name has a Go type, the body must decode
// into it, and its PartitionKey is used unless m has a key.
func (d *dispatcher) keyOf(m message) (string, error) {
	if !d.decodes {
		return m.Key, nil
	}
	env, err := d.serializer.Decode(&waybill.Record{Name: m.Name, Body: m.Body})
	if err != nil {
		return "", err
	}
	if keyed, ok := env.Message().(waybill.Keyed); ok && m.Key == "" {
		return keyed.PartitionKey(), nil
	}
	return m.Key, nil
}

// route returns the transports of name. A transport inside the process (sync, memory)
// is an error, because no other process can receive from it.
func (d *dispatcher) route(name string) ([]string, error) {
	cfg := d.s.cfg
	to := waybill.Routes(cfg.Routing).For(name)
	if d.to != "" {
		to = []string{d.to}
	}
	if to == nil {
		one, err := cfg.OutboxTransport()
		if err != nil {
			return nil, fmt.Errorf("no route for %s: %w", name, err)
		}
		to = []string{one}
	}
	unreachable := slices.IndexFunc(to, func(name string) bool { return inProcess(cfg.Transports[name].DSN) })
	if unreachable >= 0 {
		t := to[unreachable]
		return nil, &Error{Usage, fmt.Errorf("%s goes to transport %q, which is %s: it lives inside the process that sends to it, and this one ends", name, t, cfg.Transports[t].DSN),
			"dispatch it from the application, or choose another transport with --to"}
	}
	return to, nil
}

// commit dispatches ps in one transaction and prints them.
func (d *dispatcher) commit(ctx context.Context, ps ...prepared) error {
	envs := make([]any, len(ps))
	for i, p := range ps {
		envs[i] = p.env
	}
	if _, err := d.commitAll(ctx, envs...); err != nil {
		return err
	}
	for _, p := range ps {
		if !d.s.flags.json {
			d.s.stdout.line("%s", p.id)
			continue
		}
		d.s.stdout.json(struct {
			ID         waybill.MessageID `json:"id"`
			Name       string            `json:"name"`
			Key        string            `json:"key"`
			Transports []string          `json:"transports"`
		}{p.id, p.name, p.key, p.transports})
	}
	return nil
}
