package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/suggest"
)

// Validate returns all mistakes in c, as *Errors joined, or nil. It refuses settings
// that this version does not support. Load and Parse call it.
func (c *Config) Validate() error {
	if errs := c.problems(nil); len(errs) > 0 {
		return joined(errs)
	}
	return nil
}

const (
	maxNameBytes = 190
	maxRetries   = 10_000
)

var (
	configName  = regexp.MustCompile(`^[a-z0-9]+([._-][a-z0-9]+)*$`)
	messageName = regexp.MustCompile(`^[A-Za-z0-9]+([._-][A-Za-z0-9]+)*$`) // programs and waybill_dispatch take capitals, too
)

const (
	nameRule    = "a name is a to z and 0 to 9, in parts joined by . _ or -, at most 190 bytes"
	messageRule = "a name is letters and digits, in parts joined by . _ or -, at most 190 bytes"
	patternRule = `write a message name, "prefix.*" or "*"`
)

func (c *Config) problems(w written) []*Error {
	v := validation{c: c, written: w}
	v.database()
	for _, name := range slices.Sorted(maps.Keys(c.Transports)) {
		v.transport(name, c.Transports[name])
	}
	v.outbox()
	for _, pattern := range slices.Sorted(maps.Keys(c.Routing)) {
		v.route(pattern, c.Routing[pattern])
	}
	for _, name := range slices.Sorted(maps.Keys(c.Messages)) {
		v.check(validMessage(name), keyPath{"messages", name}, "not a message name", messageRule)
	}
	v.inbox()
	for _, name := range slices.Sorted(maps.Keys(c.Workers)) {
		v.worker(name, c.Workers[name])
	}
	v.schedules()
	v.limits()
	v.admin()
	v.log()
	v.check(validName(v.c.FailureTransport), keyPath{"failure_transport"}, "not a name of dead letters", nameRule)
	return v.errs
}

type validation struct {
	c       *Config
	written written
	errs    []*Error
}

func (v *validation) database() {
	at := keyPath{"database"}
	d := v.c.Database
	if d.IsZero() {
		v.fail(at, "no DSN", "")
		return
	}
	v.check(schemes[d.Scheme].stores, at, fmt.Sprintf("scheme %q is not a database", d.Scheme), "use sqlite, postgres or mysql")
	v.options(at, d)
}

// options refuses options without a meaning in their place.
func (v *validation) options(at keyPath, d DSN) {
	if d.Scheme == "queue" {
		d, _ = d.DSN("database")
		for _, name := range []string{"notify", "listen"} {
			v.check(d.options[name] == nil, at, fmt.Sprintf("option %q does nothing for a queue", name), "remove it: workers look for messages themselves")
		}
		return
	}
	if d.Scheme != "postgres" {
		return
	}
	listen, _ := d.DSN("listen")
	for _, name := range []string{"schema", "prefix", "notify", "listen"} {
		v.check(listen.options[name] == nil, at, fmt.Sprintf("option %q means nothing inside of the option \"listen\"", name), "it belongs to the DSN around it")
	}
}

func (v *validation) transport(name string, t Transport) {
	at := keyPath{"transports", name}
	v.check(validName(name), at, "not a transport name", nameRule)
	v.check(!t.DSN.IsZero(), at.child("dsn"), "no DSN", "such as queue://"+safe(name))
	v.check(!schemes[t.DSN.Scheme].stores, at.child("dsn"), fmt.Sprintf("scheme %q is a database, not a transport", t.DSN.Scheme),
		"for a queue in it write queue://NAME?database=DSN")
	v.options(at.child("dsn"), t.DSN)
	v.check(t.Store.IsZero() || schemes[t.Store.Scheme].stores, at.child("store"), fmt.Sprintf("scheme %q is not a database", t.Store.Scheme), "use sqlite, postgres or mysql")
	v.check(t.FailureTransport == "" || validName(t.FailureTransport), at.child("failure_transport"), "not a name of dead letters", nameRule)
	if t.OnExhausted != "" {
		v.policy(at.child("on_exhausted"), t.OnExhausted)
	}
	v.retry(at.child("retry"), t.Retry)
}

func (v *validation) retry(at keyPath, r Retry) {
	v.check(r.MaxRetries >= 0 && r.MaxRetries <= maxRetries, at.child("max_retries"),
		fmt.Sprintf("%d is not between 0 and %d", r.MaxRetries, maxRetries), "0 means no retries")
	v.check(r.Delay > 0, at.child("delay"), fmt.Sprintf("%s is not above zero", FormatDuration(r.Delay)), "")
	v.check(r.Multiplier >= 1, at.child("multiplier"), fmt.Sprintf("%v is less than 1", r.Multiplier), "1 means equal delays")
	v.check(r.MaxDelay >= r.Delay, at.child("max_delay"),
		fmt.Sprintf("%s is shorter than delay, %s", FormatDuration(r.MaxDelay), FormatDuration(r.Delay)), "raise max_delay, the longest wait between two attempts")
	v.check(r.Jitter >= 0 && r.Jitter <= 1, at.child("jitter"), fmt.Sprintf("%v is not between 0 and 1", r.Jitter), "")
}

func (v *validation) outbox() {
	at, o := keyPath{"outbox"}, v.c.Outbox
	if o.To != "" {
		v.known(at.child("to"), o.To)
	}
	switch o.Ordering {
	case Strict, Pipelined:
	default:
		v.fail(at.child("ordering"), quote(string(o.Ordering))+" is not an ordering", "write strict or pipelined")
	}
	v.policy(at.child("on_exhausted"), o.OnExhausted)
	v.check(o.Retry.MaxAttempts >= 1, at.child("retry").child("max_attempts"), fmt.Sprintf("%d is less than 1", o.Retry.MaxAttempts), "")
	v.period(at.child("idle_timeout"), o.IdleTimeout)
	v.period(at.child("publish_deadline"), o.PublishDeadline)
	for _, pattern := range slices.Sorted(maps.Keys(o.Routes)) {
		v.override(at.child("routes").child(pattern), pattern, o.Routes[pattern])
	}
}

func (v *validation) log() {
	switch v.c.Log.Messages {
	case "", LogDebug, LogInfo:
	default:
		v.fail(keyPath{"log", "messages"}, quote(string(v.c.Log.Messages))+" is not a level of messages", "write debug or info")
	}
}

func (v *validation) policy(at keyPath, p OnExhausted) {
	v.check(p == Block || p == Park || p == Skip, at, quote(string(p))+" is not a policy", "write block, park or skip")
}

func (v *validation) period(at keyPath, d time.Duration) {
	v.check(d >= time.Second && d <= time.Hour, at, fmt.Sprintf("%s is not between 1s and 1h", FormatDuration(d)), "")
}

func (v *validation) override(at keyPath, pattern string, r Route) {
	v.check(validPattern(pattern), at, "not a pattern", patternRule)
	v.check(r != Route{}, at, "it changes nothing", "give exchange, routing_key or on_exhausted")
	if r.OnExhausted != "" {
		v.policy(at.child("on_exhausted"), r.OnExhausted)
	}
	for key, value := range map[string]string{"exchange": r.Exchange, "routing_key": r.RoutingKey} {
		v.check(len(value) <= maxShort, at.child(key), fmt.Sprintf("%d bytes, the limit is %d", len(value), maxShort), "")
	}
}

// maxShort is the longest name that a broker accepts, in bytes.
const maxShort = 255

func validPattern(pattern string) bool {
	prefix, open := strings.CutSuffix(pattern, ".*")
	return pattern == "*" || validMessage(pattern) || open && validMessage(prefix)
}

func (v *validation) route(pattern string, transports []string) {
	at := keyPath{"routing", pattern}
	v.check(validPattern(pattern), at, "not a pattern", patternRule)
	v.check(len(transports) > 0, at, "no transport", "")
	for i, name := range transports {
		v.known(at, name)
		v.check(!slices.Contains(transports[:i], name), at, "transport "+v.written.show(at, name)+" is named twice", "")
	}
}

func (v *validation) inbox() {
	at, retention := keyPath{"inbox", "retention"}, v.c.Inbox.Retention
	if retention <= 0 {
		v.fail(at, fmt.Sprintf("%s is not above zero", FormatDuration(retention)), "")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(v.c.Transports)) {
		retry := v.c.Transports[name].Retry
		if retry.MaxRetries > maxRetries {
			continue // refused, and its window would take long to add up
		}
		if longest := retry.longest(); retention <= longest {
			v.fail(at, fmt.Sprintf("%s is not longer than the retries of transport %s, %s with jitter",
				FormatDuration(retention), quote(name), FormatDuration(longest)), "raise it, or lower the retries of the transport: a message would be forgotten while it is still retried")
		}
	}
}

// maxInFlight is the limit of package worker.
const maxInFlight = 65535

func (v *validation) worker(name string, w Worker) {
	at := keyPath{"workers", name}
	v.known(at, name)
	for key, n := range map[string]int{"concurrency": w.Concurrency, "prefetch": w.Prefetch} {
		v.check(n >= 0 && n <= maxInFlight && (n > 0 || v.c.lines[at.child(key).String()] == 0), at.child(key), fmt.Sprintf("%d is not between 1 and %d", n, maxInFlight), "leave it out for the default")
	}
	v.check(w.Priority >= 0 && w.Priority <= 1000, at.child("priority"), fmt.Sprintf("%d is not between 0 and 1000", w.Priority), "")
	weight := at.child("weight")
	v.check(w.Weight >= 0 && w.Weight <= 1000 && (w.Weight > 0 || v.c.lines[weight.String()] == 0), weight, fmt.Sprintf("%d is not between 1 and 1000", w.Weight), "leave it out for the default")
	for key, n := range map[string]int{"priority": w.Priority, "weight": w.Weight} {
		v.check(n == 0 || v.c.Limits.Concurrency > 0, at.child(key), "it decides nothing: each transport has handlers of its own", "set limits.concurrency, how many handlers all transports have together")
	}
	slow := at.child("slow_handler")
	v.check(w.SlowHandler >= 0 && (w.SlowHandler > 0 || v.c.lines[slow.String()] == 0), slow, "it is not above zero", "leave it out for the default")
	if t, ok := v.c.Transports[name]; ok {
		v.check(t.DSN.Scheme != "sync", at, "a sync transport has no worker", "its messages are handled by their sender")
		v.queue(at, name, t.DSN)
		prefetch := w.Prefetch
		if prefetch == 0 && Takes(t.DSN.Scheme, "prefetch") {
			prefetch = t.DSN.Int("prefetch", 0)
		}
		v.check(prefetch == 0 || w.Concurrency <= prefetch, at.child("concurrency"),
			fmt.Sprintf("of %d messages %d are in flight at most, by the prefetch", w.Concurrency, prefetch), "raise the prefetch, or leave it out for the default")
	}
}

// queue refuses a worker without a queue, and two of one queue: they would share its messages
// whatever their keys, and keep their retries apart.
func (v *validation) queue(at keyPath, name string, d DSN) {
	from := v.c.queueOf(d)
	if from == "" {
		v.check(d.Scheme != "amqp" && d.Scheme != "amqps", at, "the DSN of the transport names no queue to receive from", "add the option queue, and bind to take messages of an exchange")
		return
	}
	for _, other := range slices.Sorted(maps.Keys(v.c.Workers)) {
		if t, ok := v.c.Transports[other]; ok && other < name && v.c.queueOf(t.DSN) == from {
			v.fail(at, "its queue is that of the worker "+quote(other), "a queue has one worker in a process: the keys of their messages would lose their order")
			return
		}
	}
}

// queueOf identifies the queue that a worker receives from. It is empty without one, and for
// schemes without queues.
func (c *Config) queueOf(d DSN) string {
	switch d.Scheme {
	case "queue":
		database, ok := d.DSN("database")
		if !ok {
			database = c.Database
		}
		return database.Reveal() + " " + d.Host
	case "amqp", "amqps":
		if queue := d.Text("queue", ""); queue != "" {
			host := strings.TrimSuffix(strings.TrimSuffix(d.Host, ":5672"), ":5671") // one broker has both
			return host + " " + cmp.Or(d.Path, "/") + " " + queue
		}
	}
	return ""
}

func (v *validation) limits() {
	at, l := keyPath{"limits"}, v.c.Limits
	for key, limit := range map[string]int64{"time": int64(l.Time), "memory": int64(l.Memory), "failures": int64(l.Failures), "drain": int64(l.Drain), "concurrency": int64(l.Concurrency)} {
		v.check(limit >= 0 && (limit > 0 || v.c.lines[at.child(key).String()] == 0), at.child(key), "it is not above zero", "leave it out for the default")
	}
}

func (v *validation) admin() {
	at, a := keyPath{"admin"}, v.c.Admin
	if a.Listen != "" {
		_, port, err := net.SplitHostPort(a.Listen)
		_, number := strconv.ParseUint(port, 10, 16)
		v.check(err == nil && number == nil, at.child("listen"), v.written.show(at.child("listen"), a.Listen)+" is not HOST:PORT", "such as 127.0.0.1:9090")
	}
	v.check(!a.Pprof || a.Listen != "", at.child("pprof"), "there is no listener", "set admin.listen")
}

// known fails unless name is a transport.
func (v *validation) known(at keyPath, name string) {
	if _, ok := v.c.Transports[name]; !ok {
		v.fail(at, "unknown transport "+v.written.show(at, name), suggest.Hint(name, slices.Sorted(maps.Keys(v.c.Transports)), "transports"))
	}
}

func (v *validation) check(holds bool, at keyPath, what, hint string) {
	if !holds {
		v.fail(at, what, hint)
	}
}

// fail adds an error with the line of at, or of the nearest key around it.
func (v *validation) fail(at keyPath, what, hint string) {
	e := &Error{Path: at.String(), Problem: what, Hint: hint}
	for ; len(at) > 0; at = at[:len(at)-1] {
		if line := v.c.lines[at.String()]; line > 0 {
			e.File, e.Line = v.c.file, line
			break
		}
	}
	v.errs = append(v.errs, e)
}

func validName(name string) bool {
	return len(name) <= maxNameBytes && configName.MatchString(name)
}

func validMessage(name string) bool {
	return len(name) <= maxNameBytes && messageName.MatchString(name)
}

// OutboxTransport returns the transport of messages without a route: outbox.to, or
// the only transport. Without outbox.to, none or several transports are an error.
func (c *Config) OutboxTransport() (string, error) {
	names := slices.Sorted(maps.Keys(c.Transports))
	switch {
	case c.Outbox.To != "":
		return c.Outbox.To, nil
	case len(names) == 1:
		return names[0], nil
	case len(names) == 0:
		return "", &Error{Path: "outbox.to", Problem: "there is no transport to send to", Hint: "add one under transports"}
	}
	return "", &Error{Path: "outbox.to", Problem: "there are several transports", Hint: "name one of: " + strings.Join(names, ", ")}
}
