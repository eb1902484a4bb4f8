package wayamqp

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// Config has the broker's address and the transport's names. Apart from URL and an
// exchange or a queue, zero values are fit for production.
type Config struct {
	// URL is amqp://user:password@host:port/vhost, or amqps, without options.
	// It is never logged nor part of an error.
	URL string
	// TLS is for amqps. Nil means the system's roots; the server's name is that
	// of the URL unless it is set here.
	TLS *tls.Config
	// Name is shown for the connection in RabbitMQ's management. Empty means
	// waybill.
	Name string
	// Heartbeat is how often the connection shows that it is alive, 1 to 60
	// whole seconds; zero means 5 s. The broker drops a connection that was
	// silent for nearly three.
	Heartbeat time.Duration
	// DialTimeout bounds connecting, login included; zero means 10 s, as long as RabbitMQ
	// waits for a login (its handshake_timeout).
	DialTimeout time.Duration

	// Exchange is the exchange that messages are published to. Empty means the
	// default exchange, with the name of Queue as the routing key.
	Exchange string
	// ExchangeType is topic, direct, fanout or headers; empty means topic.
	ExchangeType string
	// RoutingKey is the routing key of all messages. Empty means the name of the
	// message.
	RoutingKey string
	// Routes may route messages of a name elsewhere. An empty result means the
	// default. Nil routes none elsewhere.
	Routes func(name string) (exchange, routingKey string)
	// KeyHeader sends the partition key along as the header x-partition-key, so
	// that a consumer can keep its order. A consumer without the header and
	// without KeyOf handles messages of one key side by side.
	KeyHeader bool
	// ConfirmWithin bounds the wait for a message's confirmation while the broker
	// confirms later ones: then this message alone fails, with an
	// *outbox.UnconfirmedError, and the connection stays. The wait may be a quarter
	// longer. At least 10 ms; zero means 1 s.
	ConfirmWithin time.Duration

	// Queue is the queue that messages are received from.
	Queue string
	// QueueType is classic or quorum; empty means quorum.
	QueueType string
	// SingleActiveConsumer makes the queue deliver to one consumer at a time, which
	// keeps the order of a key across several workers and across reconnects.
	// KeyHeader implies it, unless CompetingConsumers is set.
	SingleActiveConsumer bool
	// CompetingConsumers lets the queue deliver to all consumers at once, even with
	// KeyHeader. Messages of a key are then handled in any order.
	CompetingConsumers bool
	// Bindings are declared for Queue.
	Bindings []Binding
	// Prefetch bounds the unacknowledged messages of a Consumer, besides the
	// messages of keys that wait for a retry; zero means 256.
	Prefetch int
	// KeyOf tells the partition key of a message that came without the header
	// x-partition-key. Nil means that such a message has none. The body is unchecked: a
	// message for which KeyOf panics cannot be decoded, and the others are not affected.
	KeyOf func(rec *waybill.Record) string

	// Log receives alarms of the broker and defects of the queue; the connection's life at
	// level Debug, since its end is an error of Publish or Receive. Nil discards.
	Log *slog.Logger
}

// A Binding routes messages of an exchange whose routing key matches Key into the
// queue.
type Binding struct{ Exchange, Key string }

const maxShort = 255 // bytes of an AMQP short string

func (cfg Config) withDefaults() (Config, error) {
	u, err := url.Parse(cfg.URL)
	if err == nil && u.RawQuery != "" {
		return cfg, errors.New("wayamqp: the URL has options: set them in the Config")
	}
	if err == nil {
		_, err = amqp.ParseURI(cfg.URL)
	}
	if err != nil { // the library's error quotes the password
		return cfg, errors.New("wayamqp: the URL is not amqp://user:password@host:port/vhost: special characters in user, password and vhost are written as %xx")
	}
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 5*time.Second)
	if cfg.Heartbeat < time.Second || cfg.Heartbeat > time.Minute || cfg.Heartbeat%time.Second != 0 {
		return cfg, fmt.Errorf("wayamqp: Heartbeat %v: want whole seconds, 1 to 60", cfg.Heartbeat)
	}
	if cfg.DialTimeout < 0 {
		return cfg, fmt.Errorf("wayamqp: negative DialTimeout %v", cfg.DialTimeout)
	}
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 10*time.Second)
	switch cfg.ExchangeType = cmp.Or(cfg.ExchangeType, "topic"); cfg.ExchangeType {
	case "topic", "direct", "fanout", "headers":
	default:
		return cfg, fmt.Errorf("wayamqp: ExchangeType %q: want topic, direct, fanout or headers", cfg.ExchangeType)
	}
	switch cfg.QueueType = cmp.Or(cfg.QueueType, "quorum"); cfg.QueueType {
	case "classic", "quorum":
	default:
		return cfg, fmt.Errorf("wayamqp: QueueType %q: want classic or quorum", cfg.QueueType)
	}
	if cfg.ConfirmWithin != 0 && cfg.ConfirmWithin < 10*time.Millisecond {
		return cfg, fmt.Errorf("wayamqp: ConfirmWithin %v: want at least 10ms", cfg.ConfirmWithin)
	}
	cfg.ConfirmWithin = cmp.Or(cfg.ConfirmWithin, time.Second)
	if cfg.SingleActiveConsumer && cfg.CompetingConsumers {
		return cfg, errors.New("wayamqp: SingleActiveConsumer and CompetingConsumers contradict each other")
	}
	cfg.SingleActiveConsumer = cfg.SingleActiveConsumer || cfg.KeyHeader && !cfg.CompetingConsumers
	if cfg.Prefetch < 0 || cfg.Prefetch > 65535 {
		return cfg, fmt.Errorf("wayamqp: Prefetch %d: want 1 to 65535", cfg.Prefetch)
	}
	cfg.Prefetch = cmp.Or(cfg.Prefetch, 256)
	for _, name := range []struct{ what, value string }{{"Exchange", cfg.Exchange}, {"RoutingKey", cfg.RoutingKey}, {"Queue", cfg.Queue}} {
		if len(name.value) > maxShort {
			return cfg, fmt.Errorf("wayamqp: %s has %d bytes, the limit is %d", name.what, len(name.value), maxShort)
		}
	}
	for _, b := range cfg.Bindings {
		if b.Exchange == "" || cfg.Queue == "" || len(b.Exchange) > maxShort || len(b.Key) > maxShort {
			return cfg, fmt.Errorf("wayamqp: binding %q to exchange %q: it needs an exchange and a Queue, with names of at most %d bytes", b.Key, b.Exchange, maxShort)
		}
	}
	cfg.Name = cmp.Or(cfg.Name, "waybill")
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return cfg, nil
}

// destination returns where messages go, for logs.
func (cfg *Config) destination() []slog.Attr {
	u, err := amqp.ParseURI(cfg.URL)
	if err != nil {
		return nil // withDefaults has refused it
	}
	broker := url.URL{Scheme: u.Scheme, Host: net.JoinHostPort(u.Host, strconv.Itoa(u.Port)), Path: "/" + u.Vhost, RawPath: "/" + url.PathEscape(u.Vhost)}
	to := slog.String("queue", cfg.Queue)
	if cfg.Exchange != "" {
		to = slog.String("exchange", cfg.Exchange)
	}
	return []slog.Attr{slog.String("broker", broker.String()), to}
}

// route returns the exchange and routing key for messages of a name.
func (cfg *Config) route(name string) (exchange, routingKey string) {
	if cfg.Routes != nil {
		exchange, routingKey = cfg.Routes(name)
	}
	switch {
	case routingKey != "":
	case exchange == "" && cfg.Exchange == "":
		routingKey = cfg.Queue
	default:
		routingKey = cmp.Or(cfg.RoutingKey, name)
	}
	return cmp.Or(exchange, cfg.Exchange), routingKey
}
