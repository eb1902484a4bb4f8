package config

import (
	"encoding/json"
	"maps"
	"strings"
	"time"
)

// Redacted returns a copy of c that holds no passwords: each is *** and cannot
// be revealed. Use it to show a configuration. (Printing and marshalling c itself
// hides them too.)
func (c *Config) Redacted() *Config {
	copied := *c
	copied.Routing, copied.Messages = maps.Clone(c.Routing), maps.Clone(c.Messages)
	copied.Outbox.Routes, copied.Workers = maps.Clone(c.Outbox.Routes), maps.Clone(c.Workers)
	copied.Schedules = maps.Clone(c.Schedules)
	copied.Database = c.Database.Redacted()
	copied.Transports = maps.Clone(c.Transports)
	for name, t := range copied.Transports {
		t.DSN, t.Store = t.DSN.Redacted(), t.Store.Redacted()
		copied.Transports[name] = t
	}
	return &copied
}

// MarshalYAML writes c in the form of waybill.yaml, with most defaults, and
// with *** for passwords.
func (c Config) MarshalYAML() (any, error) { return c.view(), nil }

// MarshalJSON writes the same as MarshalYAML.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(c.view()) }

// view returns c in the structure of the file.
func (c Config) view() configView {
	v := configView{
		Database:   c.Database.String(),
		Transports: map[string]transportView{},
		Outbox: outboxView{
			To:          c.Outbox.To,
			Ordering:    c.Outbox.Ordering,
			OnExhausted: c.Outbox.OnExhausted,
			Retry:       outboxRetryView(c.Outbox.Retry),

			IdleTimeout:     FormatDuration(c.Outbox.IdleTimeout),
			PublishDeadline: FormatDuration(c.Outbox.PublishDeadline),
			Routes:          map[string]routeView{},
		},
		Workers:   map[string]workerView{},
		Schedules: c.scheduleViews(),
		Routing:   c.Routing,
		Messages:  c.Messages,
		Inbox:     inboxView{Retention: FormatDuration(c.Inbox.Retention)},

		FailureTransport: c.FailureTransport,
		History:          !c.NoHistory,
		Log:              c.Log.view(),
	}
	for name, t := range c.Transports {
		view := transportView{
			DSN: t.DSN.String(),
			Retry: retryView{
				MaxRetries: t.Retry.MaxRetries,
				Delay:      FormatDuration(t.Retry.Delay),
				Multiplier: t.Retry.Multiplier,
				MaxDelay:   FormatDuration(t.Retry.MaxDelay),
				Jitter:     t.Retry.Jitter,
			},
			FailureTransport: t.FailureTransport,
			OnExhausted:      t.OnExhausted,
		}
		if !t.Store.IsZero() {
			view.Store = t.Store.String()
		}
		v.Transports[name] = view
	}
	for name, w := range c.Workers {
		v.Workers[name] = workerView{w.Concurrency, w.Prefetch, optional(w.SlowHandler), w.Priority, w.Weight}
	}
	if l := c.Limits; l != (Limits{}) {
		v.Limits = &limitsView{Time: optional(l.Time), Failures: l.Failures, Drain: optional(l.Drain), Concurrency: l.Concurrency}
		if l.Memory > 0 {
			v.Limits.Memory = FormatSize(l.Memory)
		}
	}
	if c.Admin != (Admin{}) {
		v.Admin = &adminView{asWritten(c.Admin.Listen), c.Admin.Pprof}
	}
	for pattern, route := range c.Outbox.Routes {
		v.Outbox.Routes[pattern] = routeView{asWritten(route.Exchange), asWritten(route.RoutingKey), route.OnExhausted}
	}
	return v
}

// asWritten returns the form of a text in a file, in which $ begins an expansion.
func asWritten(text string) string { return strings.ReplaceAll(text, "$", "$$") }

// optional returns the form of a setting without a default.
func optional(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return FormatDuration(d)
}

type configView struct {
	Database   string                   `yaml:"database" json:"database"`
	Transports map[string]transportView `yaml:"transports" json:"transports"`
	Outbox     outboxView               `yaml:"outbox" json:"outbox"`
	Routing    map[string][]string      `yaml:"routing" json:"routing"`
	Messages   map[string]Message       `yaml:"messages" json:"messages"`
	Inbox      inboxView                `yaml:"inbox" json:"inbox"`
	Workers    map[string]workerView    `yaml:"workers,omitempty" json:"workers,omitempty"`
	Schedules  map[string]scheduleView  `yaml:"schedules,omitempty" json:"schedules,omitempty"`
	Limits     *limitsView              `yaml:"limits,omitempty" json:"limits,omitempty"`
	Admin      *adminView               `yaml:"admin,omitempty" json:"admin,omitempty"`
	Log        *logView                 `yaml:"log,omitempty" json:"log,omitempty"`

	FailureTransport string `yaml:"failure_transport" json:"failure_transport"`
	History          bool   `yaml:"history" json:"history"`
}

type transportView struct {
	DSN              string      `yaml:"dsn" json:"dsn"`
	Retry            retryView   `yaml:"retry" json:"retry"`
	Store            string      `yaml:"store,omitempty" json:"store,omitempty"`
	FailureTransport string      `yaml:"failure_transport,omitempty" json:"failure_transport,omitempty"`
	OnExhausted      OnExhausted `yaml:"on_exhausted,omitempty" json:"on_exhausted,omitempty"`
}

type retryView struct {
	MaxRetries int     `yaml:"max_retries" json:"max_retries"`
	Delay      string  `yaml:"delay" json:"delay"`
	Multiplier float64 `yaml:"multiplier" json:"multiplier"`
	MaxDelay   string  `yaml:"max_delay" json:"max_delay"`
	Jitter     float64 `yaml:"jitter" json:"jitter"`
}

type outboxView struct {
	To          string          `yaml:"to,omitempty" json:"to,omitempty"`
	Ordering    Ordering        `yaml:"ordering" json:"ordering"`
	OnExhausted OnExhausted     `yaml:"on_exhausted" json:"on_exhausted"`
	Retry       outboxRetryView `yaml:"retry" json:"retry"`

	IdleTimeout     string               `yaml:"idle_timeout" json:"idle_timeout"`
	PublishDeadline string               `yaml:"publish_deadline" json:"publish_deadline"`
	Routes          map[string]routeView `yaml:"routes,omitempty" json:"routes,omitempty"`
}

type outboxRetryView struct {
	MaxAttempts int `yaml:"max_attempts" json:"max_attempts"`
}

type routeView struct {
	Exchange    string      `yaml:"exchange,omitempty" json:"exchange,omitempty"`
	RoutingKey  string      `yaml:"routing_key,omitempty" json:"routing_key,omitempty"`
	OnExhausted OnExhausted `yaml:"on_exhausted,omitempty" json:"on_exhausted,omitempty"`
}

type workerView struct {
	Concurrency int    `yaml:"concurrency,omitempty" json:"concurrency,omitempty"`
	Prefetch    int    `yaml:"prefetch,omitempty" json:"prefetch,omitempty"`
	SlowHandler string `yaml:"slow_handler,omitempty" json:"slow_handler,omitempty"`
	Priority    int    `yaml:"priority,omitempty" json:"priority,omitempty"`
	Weight      int    `yaml:"weight,omitempty" json:"weight,omitempty"`
}

type limitsView struct {
	Time        string `yaml:"time,omitempty" json:"time,omitempty"`
	Memory      string `yaml:"memory,omitempty" json:"memory,omitempty"`
	Failures    int    `yaml:"failures,omitempty" json:"failures,omitempty"`
	Drain       string `yaml:"drain,omitempty" json:"drain,omitempty"`
	Concurrency int    `yaml:"concurrency,omitempty" json:"concurrency,omitempty"`
}

type adminView struct {
	Listen string `yaml:"listen" json:"listen"`
	Pprof  bool   `yaml:"pprof,omitempty" json:"pprof,omitempty"`
}

type logView struct {
	Messages LogLevel `yaml:"messages" json:"messages"`
}

func (l Log) view() *logView {
	if l == (Log{}) {
		return nil
	}
	return &logView{l.Messages}
}

type inboxView struct {
	Retention string `yaml:"retention" json:"retention"`
}
