package waycli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
)

// A Broker opens transports of one kind of broker for the commands. An error wraps
// waybill.ErrUnavailable if the broker cannot be reached; any other error means that
// the DSN is wrong, and may be an *Error with a hint.
type Broker struct {
	// Publisher returns the publisher for a relay. It does not connect yet: a relay
	// waits for its broker.
	Publisher func(t BrokerTransport) (Publisher, error)
	// Receiver connects, and returns the receiver for a worker.
	Receiver func(ctx context.Context, t BrokerTransport) (Receiver, error)
	// Declare declares the exchanges, queues and bindings of the DSNs, and lists them
	// by transport. With an error, a *TransportError, it lists the transports that
	// were completed before.
	Declare func(ctx context.Context, ts []BrokerTransport) ([]Declared, error)
	// Depth counts the queue of a DSN, and changes nothing. A zero Depth means that the DSN
	// names none. Nil means that the queues are not counted.
	Depth func(ctx context.Context, t BrokerTransport) (Depth, error)
	// Findings returns the defects of the exchanges and queues of the DSNs, and changes
	// nothing. A broker that cannot be reached is a finding. Nil means that they are not examined.
	Findings func(ctx context.Context, ts []BrokerTransport) []admin.Finding
}

// A Depth counts a queue at a broker.
type Depth struct {
	Queue     string `json:"queue"`
	Ready     int    `json:"ready"` // messages that no consumer has
	Consumers int    `json:"consumers"`
}

// A TransportError is the error of one of several transports.
type TransportError struct {
	Transport string
	Err       error
}

func (e *TransportError) Error() string { return fmt.Sprintf("transport %q: %v", e.Transport, e.Err) }

// Unwrap returns Err.
func (e *TransportError) Unwrap() error { return e.Err }

// A BrokerTransport is a transport of the configuration with its settings.
type BrokerTransport struct {
	Name string
	DSN  config.DSN
	// Client is the name of the connection at the broker.
	Client string
	// Routes is outbox.routes: an empty result means the value of the DSN.
	Routes func(name string) (exchange, routingKey string)
	// KeyOf returns the partition key of a message that arrived without one. It may
	// be nil. If it panics, the record gets a Problem.
	KeyOf func(rec *waybill.Record) string
	// Prefetch replaces the prefetch of the DSN unless it is zero.
	Prefetch int
	Log      *slog.Logger
}

// Declared lists the declared objects of a transport at its broker, for humans.
type Declared struct {
	Transport string   `json:"transport"`
	Things    []string `json:"declared"`
}

// A Publisher publishes to a transport at a broker.
type Publisher interface {
	outbox.Publisher
	io.Closer
}

// A Receiver receives from a transport at a broker. One with a method Connect(ctx) error
// connects by it, unless a connection is known to be alive: /readyz calls it.
type Receiver interface {
	waybill.Receiver
	io.Closer
}

// broker returns the named transport and the Broker of its scheme.
func (s *session) broker(name string) (Broker, BrokerTransport, error) {
	t, err := s.transport(name)
	if err != nil {
		return Broker{}, BrokerTransport{}, err
	}
	broker, ok := s.app.Brokers[t.DSN.Scheme]
	if !ok {
		return broker, BrokerTransport{}, &Error{Usage, fmt.Errorf("transport %q: this version cannot open %s:// transports", name, t.DSN.Scheme), "it opens " + s.transportSchemes()}
	}
	return broker, BrokerTransport{Name: name, DSN: t.DSN, Client: s.app.Name + " " + name, Log: s.log}, nil
}

// transportSchemes lists the schemes of transports that can be opened.
func (s *session) transportSchemes() string {
	schemes := append(slices.Sorted(maps.Keys(s.app.Brokers)), "queue")
	for i := range schemes {
		schemes[i] += "://"
	}
	return strings.Join(schemes, ", ") + " in a database of: " + s.databases()
}

// brokerError adds to err its transport and the place of its DSN.
func (s *session) brokerError(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	}
	kind := Usage
	if errors.Is(err, waybill.ErrUnavailable) {
		kind = Unavailable
	}
	advice := "check that the broker runs there, and user, password and virtual host"
	if untrusted := (*tls.CertificateVerificationError)(nil); errors.As(err, &untrusted) {
		advice = "the broker's certificate must be in date, for that host or the name in the option server_name, and by an issuer in the file of the option ca"
	}
	advice = adviceIn(err, advice)
	origin := fmt.Sprintf("%s comes from %s", s.cfg.Transports[name].DSN, s.cfg.Origins()["transports."+pathKey(name)+".dsn"])
	return &Error{kind, &TransportError{name, err}, joined(advice, origin)}
}

// publisher opens the named transport to publish to.
func (s *session) publisher(ctx context.Context, name string) (outbox.Publisher, error) {
	t, err := s.transport(name)
	if err != nil {
		return nil, err
	}
	if ownTransport(t.DSN) {
		return s.queue(ctx, name)
	}
	broker, to, err := s.broker(name)
	if err != nil {
		return nil, err
	}
	route := routesOf(s.cfg.Outbox.Routes)
	to.Routes = func(name string) (exchange, routingKey string) { r := route(name); return r.Exchange, r.RoutingKey }
	p, err := broker.Publisher(to)
	if err != nil {
		return nil, s.brokerError(name, err)
	}
	s.closers = append(s.closers, p)
	s.needs("publish to "+name, p.Connect)
	return p, nil
}

// receiver opens the named transport to receive from.
func (s *session) receiver(ctx context.Context, name string, prefetch int, keyOf func(*waybill.Record) string) (waybill.Receiver, error) {
	t, err := s.transport(name)
	if err != nil {
		return nil, err
	}
	if ownTransport(t.DSN) {
		return s.queue(ctx, name)
	}
	broker, from, err := s.broker(name)
	if err != nil {
		return nil, err
	}
	from.Prefetch, from.KeyOf = prefetch, keyOf
	r, err := broker.Receiver(ctx, from)
	if err != nil {
		return nil, s.brokerError(name, err)
	}
	s.closers = append(s.closers, r)
	if connects, ok := r.(interface{ Connect(context.Context) error }); ok {
		s.needs("receive from "+name, connects.Connect)
	}
	return r, nil
}

// routesOf resolves routes as waybill.Routes does: the exact name wins, then
// the longest prefix.
func routesOf(routes map[string]config.Route) func(name string) config.Route {
	patterns := waybill.Routes{}
	for pattern := range routes {
		patterns[pattern] = []string{pattern}
	}
	return func(name string) config.Route {
		if found := patterns.For(name); found != nil {
			return routes[found[0]]
		}
		return config.Route{}
	}
}

// keyOf returns the partition key of the message that a record holds, as its
// Go type has it. A body that cannot be decoded gives an empty key: its handling
// fails.
func keyOf(bus *waybill.Bus) func(*waybill.Record) string {
	return func(rec *waybill.Record) string {
		env, err := bus.Serializer().Decode(rec)
		if err != nil {
			return ""
		}
		if keyed, ok := env.Message().(waybill.Keyed); ok {
			return keyed.PartitionKey()
		}
		return ""
	}
}

// brokerFindings are those of exchanges and queues at brokers.
func (s *session) brokerFindings(ctx context.Context) (found []admin.Finding, _ error) {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	for _, scheme := range slices.Sorted(maps.Keys(s.app.Brokers)) {
		ts, err := s.brokerTransports(scheme)
		if err != nil {
			return nil, err
		}
		if examine := s.app.Brokers[scheme].Findings; examine != nil && len(ts) > 0 {
			found = append(found, examine(ctx, ts)...)
		}
	}
	return found, nil
}

// examineTimeout bounds the time in which all brokers answer.
const examineTimeout = 20 * time.Second

// brokerTransports returns the transports of a scheme.
func (s *session) brokerTransports(scheme string) (ts []BrokerTransport, _ error) {
	for _, name := range transportNames(s.cfg) {
		if s.cfg.Transports[name].DSN.Scheme == scheme {
			_, t, err := s.broker(name)
			if err != nil {
				return nil, err
			}
			ts = append(ts, t)
		}
	}
	return ts, nil
}

// declareTransports declares the transports of brokers.
func (s *session) declareTransports(ctx context.Context) ([]Declared, error) {
	all := []Declared{}
	for _, scheme := range slices.Sorted(maps.Keys(s.app.Brokers)) {
		ts, err := s.brokerTransports(scheme)
		if err != nil {
			return all, err
		}
		if len(ts) == 0 {
			continue
		}
		declared, err := s.app.Brokers[scheme].Declare(ctx, ts)
		all = append(all, declared...)
		if of := (*TransportError)(nil); errors.As(err, &of) {
			err = s.brokerError(of.Transport, of.Err)
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}
