package config

import (
	"cmp"
	"maps"
	"time"
)

// A Config is the content of waybill.yaml, complete with defaults. Load and
// Parse return valid ones only; a Config built in code needs Validate.
type Config struct {
	// Database holds the outbox, the inbox, queues and failures.
	Database DSN
	// Transports are the transports to send to and receive from, by name.
	Transports map[string]Transport
	Outbox     Outbox
	// Routing maps a message name, "prefix.*" or "*" to the names of the
	// transports that take the message.
	Routing map[string][]string
	// Messages are the message names that the stock binary accepts.
	Messages map[string]Message
	Inbox    Inbox
	// Workers are the transports that a service consumes, by name.
	Workers map[string]Worker
	// Schedules dispatch messages at given times, by name.
	Schedules map[string]Schedule
	// Limits end a process in good order, so that its supervisor starts a new one.
	Limits Limits
	// Admin is where a relay or worker process answers probes and scrapes.
	Admin Admin
	// FailureTransport names the dead letters of transports that name none.
	FailureTransport string
	Log              Log
	// NoHistory leaves out the counts and latencies that the commands write to Database.
	NoHistory bool

	file    string
	lines   map[string]int
	origins map[string]string
}

// A Transport is a named queue, exchange or topic to send to or receive from.
type Transport struct {
	DSN   DSN
	Retry Retry
	// Store is the database that keeps the transport's failed messages. Zero means
	// Database.
	Store DSN
	// FailureTransport names the dead letters of the transport. Empty means that of the
	// Config.
	FailureTransport string
	// OnExhausted is the policy for a key whose head a worker cannot handle: see
	// worker.Policy. Empty means Park; a message without a key is always skipped.
	OnExhausted OnExhausted
}

// A Retry is the delay before a failed message is handled again:
// min(MaxDelay, Delay * Multiplier^n), give or take the share Jitter of it. After
// MaxRetries (0 to 10000) retries OnExhausted decides.
type Retry struct {
	MaxRetries int
	Delay      time.Duration
	Multiplier float64
	MaxDelay   time.Duration
	Jitter     float64
}

// An Outbox is the configuration of the outbox and its relay.
type Outbox struct {
	// To is the transport of messages without a route. Empty means the only
	// one: see OutboxTransport.
	To          string
	Ordering    Ordering
	OnExhausted OnExhausted
	Retry       OutboxRetry
	// IdleTimeout is how long a relay or worker that holds locks may be silent before the
	// database ends its session. (A SQLite file has one relay, and waits.)
	IdleTimeout time.Duration
	// PublishDeadline is how long publishing one batch may take, confirmations
	// included. IdleTimeout must exceed it by three heartbeats of the broker and
	// 2 s: the relay checks that.
	PublishDeadline time.Duration
	// Routes maps a message name, "prefix.*" or "*" to its exchange and routing key
	// at brokers, instead of those of the DSN.
	Routes map[string]Route
}

// OutboxRetry limits how often the relay tries to publish one message.
type OutboxRetry struct {
	MaxAttempts int
}

// A Route overrides exchange and routing key of a message, and its policy after too
// many refusals. Empty fields mean the values of the transport's DSN and of Outbox.
type Route struct {
	Exchange    string
	RoutingKey  string
	OnExhausted OnExhausted
}

// Ordering is how many messages of one key may be unconfirmed at a time.
type Ordering string

const (
	// Strict means one. A broker that refuses a message cannot change the order.
	Strict Ordering = "strict"
	// Pipelined means any number: see outbox.RelayConfig.
	Pipelined Ordering = "pipelined"
)

// OnExhausted is the policy for a key whose head was refused MaxAttempts times: see
// outbox.Policy.
type OnExhausted string

const (
	Block OnExhausted = "block"
	Park  OnExhausted = "park"
	Skip  OnExhausted = "skip"
)

// A Message has no settings yet.
type Message struct{}

// An Inbox is the configuration of the inbox.
type Inbox struct {
	Retention time.Duration
}

// A Worker is the configuration of the worker of one transport. Zero means the default of
// worker.Config.
type Worker struct {
	// Concurrency is how many handlers run at once.
	Concurrency int
	// Prefetch is how many messages are in flight at most. Zero means the prefetch of the
	// DSN, or that default.
	Prefetch int
	// SlowHandler is how long the handlers of a message may run before a warning; zero means
	// the default of worker.Config.
	SlowHandler time.Duration
	// Priority decides which transport has the next handler of Limits.Concurrency.
	Priority int
	// Weight is the share of these handlers among transports of one priority.
	Weight int
}

// Limits are those of worker.Limits, and the time for handlers to end. Zero means no limit.
type Limits struct {
	Time     time.Duration
	Memory   uint64 // bytes
	Failures int
	// Concurrency is how many handlers of all transports run at once in one process.
	Concurrency int
	// Drain is how long handlers may go on after the end of a process has begun; zero means
	// the default of worker.Config.
	Drain time.Duration
}

// An Admin is the address at which relay, consume and run serve health and metrics.
type Admin struct {
	// Listen is HOST:PORT. Empty means that nothing is served.
	Listen string
	// Pprof serves profiles of the process, too.
	Pprof bool
}

// A Log is what the commands log of messages.
type Log struct {
	// Messages is the level of the line that each message has when it is dispatched, published
	// and handled. Empty means LogDebug.
	Messages LogLevel
}

// A LogLevel is a level of lines in the log.
type LogLevel string

const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
)

// DefaultRetry covers an outage of 16 minutes.
func DefaultRetry() Retry {
	return Retry{MaxRetries: 8, Delay: time.Second, Multiplier: 3, MaxDelay: 5 * time.Minute, Jitter: 0.1}
}

// defaultDatabase is expanded as a value of a file would be.
const defaultDatabase = "${WAYBILL_DATABASE_URL:-sqlite://./waybill.db}"

func defaults() *Config {
	return &Config{
		Transports: map[string]Transport{},
		Outbox: Outbox{
			Ordering: Strict, OnExhausted: Block, Retry: OutboxRetry{MaxAttempts: 10},
			IdleTimeout: 30 * time.Second, PublishDeadline: 10 * time.Second,
		},
		Routing:  map[string][]string{},
		Messages: map[string]Message{},
		Inbox:    Inbox{Retention: 30 * day},
		lines:    map[string]int{},
		origins:  map[string]string{},

		FailureTransport: "failed",
	}
}

// FailureTransportOf returns the name of the dead letters of a transport.
func (c *Config) FailureTransportOf(transport string) string {
	return cmp.Or(c.Transports[transport].FailureTransport, c.FailureTransport)
}

// StoreOf returns the database that keeps the failed messages of a transport.
func (c *Config) StoreOf(transport string) DSN {
	if store := c.Transports[transport].Store; !store.IsZero() {
		return store
	}
	return c.Database
}

// Origins returns the origin of each single value, by dotted path: a line
// ("waybill.yaml:7"), "default", "environment NAME" or "file PATH". A value
// put together from several names them all, separated by commas.
func (c *Config) Origins() map[string]string { return maps.Clone(c.origins) }
