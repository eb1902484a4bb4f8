package config

import (
	"maps"
	"time"
)

// A Config is the content of waybill.yaml, complete with defaults. Load and
// Parse return valid ones only; who builds one in code calls Validate.
type Config struct {
	// Database holds the outbox, the inbox, queues and failures.
	Database DSN
	// Transports are the places to send to and receive from, by name.
	Transports map[string]Transport
	Outbox     Outbox
	// Routing maps a message name, "prefix.*" or "*" to the names of the
	// transports that take the message.
	Routing map[string][]string
	// Messages are the message names that the stock binary accepts.
	Messages map[string]Message
	Inbox    Inbox

	file    string
	lines   map[string]int
	origins map[string]string
}

// A Transport is a named place to send to and receive from.
type Transport struct {
	DSN   DSN
	Retry Retry
	// FailureTransport is not available in this version: Validate refuses it.
	FailureTransport string
}

// A Retry says when a failed message is tried again: after
// min(MaxDelay, Delay * Multiplier^n), give or take the share Jitter of it, up
// to MaxRetries (at most 10000) times. Zero MaxRetries means never.
type Retry struct {
	MaxRetries int
	Delay      time.Duration
	Multiplier float64
	MaxDelay   time.Duration
	Jitter     float64
}

// An Outbox says how the relay works.
type Outbox struct {
	// To is the transport of messages without a route. Empty means the only
	// one: see OutboxTransport.
	To          string
	Ordering    Ordering
	OnExhausted OnExhausted
	Retry       OutboxRetry
	// IdleTimeout is how long a relay may be silent before the database takes
	// from it what it has in hand. (A SQLite file has one relay, and waits.)
	IdleTimeout time.Duration
	// PublishDeadline is how long publishing one batch may take, confirmations
	// included. IdleTimeout must exceed it by three heartbeats of the broker and
	// 2 s: the relay checks that.
	PublishDeadline time.Duration
	// Routes says for a message name, "prefix.*" or "*" where brokers take it,
	// in place of what the DSN says.
	Routes map[string]Route
}

// OutboxRetry limits how often the relay tries to publish one message.
type OutboxRetry struct {
	MaxAttempts int
}

// A Route overrides where a broker takes a message, and what becomes of it when it
// is refused too often. What is empty stays as the DSN of the transport and
// Outbox have it.
type Route struct {
	Exchange    string
	RoutingKey  string
	OnExhausted OnExhausted
}

// Ordering says how many messages of one key may be unconfirmed at a time.
type Ordering string

const (
	// Strict is one. A broker that refuses a message cannot change the order.
	Strict Ordering = "strict"
	// Pipelined is any number: see outbox.RelayConfig.
	Pipelined Ordering = "pipelined"
)

// OnExhausted says what becomes of a key whose head was tried MaxAttempts
// times: see outbox.Policy.
type OnExhausted string

const (
	Block OnExhausted = "block"
	Park  OnExhausted = "park"
	Skip  OnExhausted = "skip"
)

// A Message has no settings yet.
type Message struct{}

// An Inbox says how long handled messages are remembered.
type Inbox struct {
	Retention time.Duration
}

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
	}
}

// Origins says where each single value came from, by dotted path: a line
// ("waybill.yaml:7"), "default", "environment NAME" or "file PATH". A value
// put together from several names them all, separated by commas.
func (c *Config) Origins() map[string]string { return maps.Clone(c.origins) }
