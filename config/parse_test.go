package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const full = `# all that this version honours
database: sqlite://./shop.db
transports:
  events:      { dsn: "amqp://guest:${PW}@localhost:5672/%2f?exchange=events&type=topic" }
  orders_high: { dsn: "queue://orders_high?ordered=true", retry: &slow { max_retries: 5, delay: 5s, multiplier: 3.5, max_delay: 5m, jitter: 0 } }
  catalog:
    dsn: memory://
    retry: *slow
    store: sqlite://./worker.db
    failure_transport: failed_catalog
    on_exhausted: skip
outbox: { to: events, ordering: strict, on_exhausted: block, retry: { max_attempts: "${ATTEMPTS:-7}" }, idle_timeout: 1m, publish_deadline: 20s, routes: { "payment.*": { exchange: payments, routing_key: payment }, order.placed: { exchange: orders, on_exhausted: park } } }
routing: { "catalog.*": catalog, "invoice.send": [orders_high, events], "*": events }
messages: { order.placed: {}, order.shipped: }
inbox: { retention: 2w }
failure_transport: failed_orders
`

var unseen = cmpopts.IgnoreUnexported(Config{})

func TestParseReadsEverySetting(t *testing.T) {
	got, err := Parse("waybill.yaml", []byte(full), environment(map[string]string{"PW": "s%20e"}))
	if err != nil {
		t.Fatal(err)
	}
	slow := Retry{MaxRetries: 5, Delay: 5 * time.Second, Multiplier: 3.5, MaxDelay: 5 * time.Minute}
	want := &Config{
		Database: MustParseDSN("sqlite://./shop.db"),
		Transports: map[string]Transport{
			"events":      {DSN: MustParseDSN("amqp://guest:s%20e@localhost:5672/%2f?exchange=events&type=topic"), Retry: DefaultRetry()},
			"orders_high": {DSN: MustParseDSN("ordered-queue://orders_high"), Retry: slow},
			"catalog":     {DSN: MustParseDSN("memory://"), Retry: slow, Store: MustParseDSN("sqlite://./worker.db"), FailureTransport: "failed_catalog", OnExhausted: Skip},
		},
		Outbox: Outbox{
			To: "events", Ordering: Strict, OnExhausted: Block, Retry: OutboxRetry{MaxAttempts: 7}, IdleTimeout: time.Minute, PublishDeadline: 20 * time.Second,
			Routes: map[string]Route{"payment.*": {Exchange: "payments", RoutingKey: "payment"}, "order.placed": {Exchange: "orders", OnExhausted: Park}},
		},
		Routing:  map[string][]string{"catalog.*": {"catalog"}, "invoice.send": {"orders_high", "events"}, "*": {"events"}},
		Messages: map[string]Message{"order.placed": {}, "order.shipped": {}},
		Inbox:    Inbox{Retention: 14 * day},

		FailureTransport: "failed_orders",
	}
	if diff := cmp.Diff(want, got, unseen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnEmptyFileIsTheDefaults(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "---\n", "transports:\noutbox:\n"} {
		c, err := Parse("waybill.yaml", []byte(content), environment(nil))
		if err != nil {
			t.Fatal(err)
		}
		want := &Config{
			Database:   MustParseDSN("sqlite://./waybill.db"),
			Transports: map[string]Transport{},
			Outbox:     Outbox{Ordering: "strict", OnExhausted: "block", Retry: OutboxRetry{MaxAttempts: 10}, IdleTimeout: 30 * time.Second, PublishDeadline: 10 * time.Second},
			Routing:    map[string][]string{},
			Messages:   map[string]Message{},
			Inbox:      Inbox{Retention: 720 * time.Hour},

			FailureTransport: "failed",
		}
		if diff := cmp.Diff(want, c, unseen); diff != "" {
			t.Errorf("%q (-want +got):\n%s", content, diff)
		}
	}
	want := Retry{MaxRetries: 8, Delay: time.Second, Multiplier: 3, MaxDelay: 5 * time.Minute, Jitter: 0.1}
	if diff := cmp.Diff(want, DefaultRetry()); diff != "" {
		t.Errorf("DefaultRetry (-want +got):\n%s", diff)
	}
}

func TestLineEndingsAndByteOrderMarkDoNotMatter(t *testing.T) {
	for name, content := range map[string]string{
		"crlf": strings.ReplaceAll(full, "\n", "\r\n"), "block": "database: >-\n  sqlite://./shop.db\n",
		"mark": "\uFEFF" + full, "mark before a key": "\uFEFFdatabase: sqlite://./shop.db\n",
	} {
		c, err := Parse("waybill.yaml", []byte(content), environment(map[string]string{"PW": "x"}))
		if err != nil || c.Database.Path != "./shop.db" {
			t.Errorf("%s: Parse = %v, %v", name, c, err)
		}
	}
}

func TestOriginsNameLineDefaultAndEnvironment(t *testing.T) {
	c, err := Parse("waybill.yaml", []byte(full), environment(map[string]string{"PW": "x"}))
	if err != nil {
		t.Fatal(err)
	}
	got := c.Origins()
	for path, want := range map[string]string{
		"database":                             "waybill.yaml:2",
		"transports.events.dsn":                "waybill.yaml:4, environment PW",
		"transports.events.retry.delay":        "default",
		"transports.orders_high.retry.delay":   "waybill.yaml:5",
		"transports.catalog.dsn":               "waybill.yaml:7",
		"transports.catalog.retry.max_delay":   "waybill.yaml:5",
		"transports.catalog.failure_transport": "waybill.yaml:10",
		"outbox.retry.max_attempts":            "waybill.yaml:12",
		`routing."catalog.*"`:                  "waybill.yaml:13",
		"inbox.retention":                      "waybill.yaml:15",
	} {
		if got[path] != want {
			t.Errorf("origin of %s = %q, want %q", path, got[path], want)
		}
	}
	for url, want := range map[string]string{"": "default", "sqlite://./env.db": "environment WAYBILL_DATABASE_URL"} {
		c, err := Parse("", nil, environment(map[string]string{"WAYBILL_DATABASE_URL": url}))
		if err != nil || c.Origins()["database"] != want {
			t.Errorf("WAYBILL_DATABASE_URL=%q: origin %q, %v, want %q", url, c.Origins()["database"], err, want)
		}
	}
}

func TestWrongFilesSayWhereAndWhatToWrite(t *testing.T) {
	const transport = "transports: {events: {dsn: 'amqp://h'}, slow: {dsn: 'memory://'}}\n"
	for content, want := range map[string]string{
		"\n\ntransports:\n  events:\n    retry: {}\n\n    dsn: amqp://h?exhange=x\n": `waybill.yaml:7: transports.events.dsn: unknown option "exhange" (did you mean "exchange"?)`,
		"trnasports: {}":                              `waybill.yaml:1: unknown key "trnasports" (did you mean "transports"?)`,
		"transports:\n  events:\n    retries: 5":      `waybill.yaml:3: transports.events: unknown key "retries" (did you mean "retry"?)`,
		"outbox:\n  xxxxxxxx: 1":                      `outbox: unknown key "xxxxxxxx" (keys: idle_timeout, on_exhausted, ordering, publish_deadline, retry, routes, to)`,
		"messages: {a: {b: c}}":                       `messages.a: unknown key "b" (a message has no keys; where it goes stands under routing)`,
		"inbox: {}\n\ninbox: {}":                      "waybill.yaml:3: inbox: duplicate key (it is also on line 1)",
		"transports:\n  a: {dsn: 'sync://'}\n  a: {}": "waybill.yaml:3: transports.a: duplicate key (it is also on line 2)",
		"database:":                                   "waybill.yaml:1: database: no value (give it one, or remove the key if it has a default)",
		"database: {}":                                "waybill.yaml:1: database: a mapping where a single value belongs",
		"outbox: strict":                              "outbox: a single value where a mapping belongs",
		"- a":                                         "waybill.yaml:1: a list where a mapping belongs",
		"database: amqp://h":                          `database: scheme "amqp" is not a database (use sqlite, postgres or mysql)`,
		"database: ${NOPE}":                           "waybill.yaml:1: database: the environment variable NOPE is not set (set it, or write ${NOPE:-default})",
		"database: a$b":                               "database: a bare $",
		"transports:\n  events: {}":                   "waybill.yaml:2: transports.events.dsn: no DSN (such as queue://events)",
		"transports: {events: 'amqp://h'}":            "transports.events: a single value where a mapping belongs (write events: { dsn: ... })",
		"transports: {a: {dsn: 'postgres://h'}}":      `transports.a.dsn: scheme "postgres" is a database, not a transport`,
		"transports: {Events: {dsn: 'amqp://h'}}":     "transports.Events: not a transport name",
		"transports: {a: {dsn: 'sync://', retry: {max_retries: 1.5}}}":                                  "transports.a.retry.max_retries: \"1.5\" is not a whole number",
		"transports: {a: {dsn: 'sync://', retry: {max_retries: -1}}}":                                   "transports.a.retry.max_retries: -1 is not between 0 and 10000",
		"transports: {a: {dsn: 'sync://', retry: {max_retries: 9999999999999}}}":                        "transports.a.retry.max_retries: 9999999999999 is not between 0 and 10000",
		"transports: {a: {dsn: 'sync://', retry: {delay: 5}}}":                                          `transports.a.retry.delay: "5" is not a duration (such as 15s, 1h30m or 30d)`,
		"transports: {a: {dsn: 'sync://', retry: {delay: 0s}}}":                                         "transports.a.retry.delay: 0s is not above zero",
		"transports: {a: {dsn: 'sync://', retry: {delay: 10m}}}":                                        "transports.a.retry.max_delay: 5m is shorter than delay, 10m",
		"transports: {a: {dsn: 'sync://', retry: {multiplier: 0.5}}}":                                   "transports.a.retry.multiplier: 0.5 is less than 1",
		"transports: {a: {dsn: 'sync://', retry: {multiplier: .nan}}}":                                  `transports.a.retry.multiplier: ".nan" is not a number`,
		"transports: {a: {dsn: 'sync://', retry: {jitter: 1.1}}}":                                       "transports.a.retry.jitter: 1.1 is not between 0 and 1",
		transport + "outbox: {to: event}":                                                               `waybill.yaml:2: outbox.to: unknown transport "event" (did you mean "events"?)`,
		transport + "outbox: {ordering: loose}":                                                         `outbox.ordering: "loose" is not one of strict, pipelined`,
		transport + "outbox: {retry: {max_attempts: 0}}":                                                "outbox.retry.max_attempts: 0 is less than 1",
		transport + "routing: {order.placed: evens}":                                                    `waybill.yaml:2: routing."order.placed": unknown transport "evens" (did you mean "events"?)`,
		transport + "routing: {order.placed: warehouse}":                                                `unknown transport "warehouse" (transports: events, slow)`,
		transport + "routing: {order.placed: []}":                                                       `routing."order.placed": no transport`,
		transport + "routing: {order.placed: [slow, slow]}":                                             `transport "slow" is named twice`,
		transport + "routing: {order.*.x: slow}":                                                        `routing."order.*.x": not a pattern (write a message name, "prefix.*" or "*")`,
		transport + "routing: {'order*': slow}":                                                         "not a pattern",
		transport + "routing: {'.*': slow}":                                                             "not a pattern",
		transport + "routing: {Örder: slow}":                                                            "not a pattern",
		transport + "routing: {order.placed: Slow}":                                                     `unknown transport "Slow"`,
		"messages: {order..placed: {}}":                                                                 `messages."order..placed": not a message name`,
		"messages: {" + strings.Repeat("a", 191) + ": {}}":                                              "not a message name",
		"inbox: {retention: -1d}":                                                                       "inbox.retention: -1d is not above zero",
		"transports: {a: {dsn: 'queue://a'}}\nworkers: {a: {priority: 1}}":                              "workers.a.priority: it decides nothing",
		"transports: {a: {dsn: 'queue://a'}}\nworkers: {a: {priority: 1001}}\nlimits: {concurrency: 2}": "workers.a.priority: 1001 is not between 0 and 1000",
		"transports: {a: {dsn: 'amqp://h?prefetch=1'}}\nworkers: {a: {concurrency: 10}}":                "workers.a.concurrency: of 10 messages 1 are in flight at most",
		"transports: {a: {dsn: 'amqp://h?prefetch=1'}}\nworkers: {a: {concurrency: 10, prefetch: 5}}":   "workers.a.concurrency: of 10 messages 5 are in flight at most",
		"transports: {a: {dsn: 'queue://a'}}\nworkers: {a: {weight: 2}}":                                "workers.a.weight: it decides nothing",
		"transports: {a: {dsn: 'queue://a'}}\nworkers: {a: {weight: 0}}\nlimits: {concurrency: 2}":      "workers.a.weight: 0 is not between 1 and 1000",
		"limits: {concurrency: 0}":                                                                      "limits.concurrency: it is not above zero",
		"transports: {a: {dsn: 'queue://a'}}\nworkers: {a: {slow_handler: 0s}}":                         "workers.a.slow_handler: it is not above zero",
		"inbox: {retention: 0}":                                                                         "inbox.retention: 0s is not above zero",
		"inbox: {retention: '${N:-x}'}":                                                                 `inbox.retention: "${N:-x}" is not a duration`,
		transport + "inbox: {retention: 17m}":                                                           `waybill.yaml:2: inbox.retention: 17m is not longer than the retries of transport "events", 17m40.4s with jitter`,
		transport + "outbox: {on_exhausted: retry}":                                                     `outbox.on_exhausted: "retry" is not one of block, park, skip`,
		transport + "outbox:\n  routes: { 'payment.*': {} }":                                            `waybill.yaml:3: outbox.routes."payment.*": it changes nothing (give exchange, routing_key or on_exhausted)`,
		transport + "outbox: {routes: {'payment*': {exchange: p}}}":                                     `outbox.routes."payment*": not a pattern (write a message name, "prefix.*" or "*")`,
		transport + "outbox: {routes: {'*': {routing_key: " + strings.Repeat("k", 256) + "}}}":          `outbox.routes."*".routing_key: 256 bytes, the limit is 255`,
		transport + "outbox: {routes: {'*': {key: k}}}":                                                 `outbox.routes."*": unknown key "key" (keys: exchange, on_exhausted, routing_key)`,
		transport + "outbox: {idle_timeout: 500ms}":                                                     "outbox.idle_timeout: 500ms is not between 1s and 1h",
		transport + "outbox: {publish_deadline: 2h}":                                                    "outbox.publish_deadline: 2h is not between 1s and 1h",
		"database: postgres://h/d?listen=postgres:%2F%2Fh%2Fd%3Fprefix=x":                               `waybill.yaml:1: database: option "prefix" means nothing inside of the option "listen" (it belongs to the DSN around it)`,
		"database: postgres://h/d?listen=mysql:%2F%2Fu%40h%2Fd":                                         `option "listen": scheme "mysql" does not fit`,
		"database: postgres://h/d?notfy=true":                                                           `unknown option "notfy" (did you mean "notify"?)`,
		"transports: {a: {dsn: 'queue://a?database=postgres:%2F%2Fh%2Fd%3Fnotify=true'}}":               `transports.a.dsn: option "notify" does nothing for a queue`,
		"database: mysql://u@h/d?notify=true":                                                           `there is no option "notify" for mysql (MySQL and MariaDB have no NOTIFY: relays look for messages every 250 ms, or more often)`,
		"database: mariadb://u@h/d?listen=mysql:%2F%2Fu%40h%2Fd":                                        `there is no option "listen" for mysql (MySQL and MariaDB have no NOTIFY`,
		"transports: {a: {dsn: 'amqp://h?heartbeat=1500ms'}}":                                           `option "heartbeat": wrong value "1500ms" (it takes whole seconds, from 1s to 1m)`,
		"database: postgres://h/d?connect_timeout=1h":                                                   `option "connect_timeout": wrong value "1h" (it takes whole seconds, from 1s to 10m)`,
		"transports: {a: {dsn: 'sync://', failure_transport: B b}}":                                     "waybill.yaml:1: transports.a.failure_transport: not a name of dead letters",
		"transports: {a: {dsn: 'sync://', on_exhausted: drop}}":                                         "waybill.yaml:1: transports.a.on_exhausted: \"drop\" is not one of block, park, skip",
		"transports: {a: {dsn: 'sync://', store: 'queue://x'}}":                                         "waybill.yaml:1: transports.a.store: scheme \"queue\" is not a database",
		"a: b\n---\nc: d":          "waybill.yaml:3: a second document",
		"a: [1, 2":                 "waybill.yaml:1: not valid YAML: ",
		"a:\n\tb: c":               "waybill.yaml:2: not valid YAML: found character '\\t' that cannot start any token (YAML takes no tabs: indent with spaces)",
		"a: \"b\\c\"":              "waybill.yaml:1: not valid YAML: found unknown escape character 'c' (in double quotes a backslash begins an escape: use single quotes)",
		"a:\n  b: {c: d}\n   e: f": "waybill.yaml:3: not valid YAML: value is not allowed in this context (is this line, or the next, indented deeper",
		"a: b\n c:\n  d: e":        "waybill.yaml:1: not valid YAML: mapping value is not allowed in this context (is this line, or the next, indented deeper",
		"x: &a {}\n<<: *a":         "waybill.yaml:2: a merge key <<",
		"inbox: !!map {}":          "waybill.yaml:1: YAML of the type Tag",
		"inbox: *nowhere":          "an alias without an anchor before it",
		"inbox: &a {b: *a}":        "an alias without an anchor before it",
		"? a\n: b":                 "a key that is not a plain word",
		"database: ${FOO:-$}":      "database: a $ in the default of ${FOO}",
	} {
		c, err := Parse("waybill.yaml", []byte(content), environment(nil))
		if err == nil || !strings.Contains(err.Error(), want) || c != nil {
			t.Errorf("Parse(%q) = %v\nwant an error with %s", content, err, want)
		}
		if _, ok := errors.AsType[*Error](err); !ok {
			t.Errorf("Parse(%q): no *Error in %T", content, err)
		}
	}
}

func TestAWrongEnvironmentIsNamed(t *testing.T) {
	getenv := environment(map[string]string{"WAYBILL_DATABASE_URL": "sqlight://./a.db", "DAYS": "many"})
	_, err := Parse("waybill.yaml", []byte("inbox: {retention: '${DAYS}'}"), getenv)
	want := `database: unknown scheme "sqlight" (did you mean "sqlite"?; from environment WAYBILL_DATABASE_URL)
waybill.yaml:1: inbox.retention: "${DAYS}" is not a duration (such as 15s, 1h30m or 30d) (from environment DAYS)`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestMessagesMayHaveTheNamesThatProgramsGiveThem(t *testing.T) {
	c, err := Parse("waybill.yaml", []byte(`
transports: { events: { dsn: "queue://events" } }
messages: { OrderPlaced: {} }
routing: { OrderPlaced: events, "Shop.*": events }
outbox: { routes: { OrderPlaced: { exchange: orders } } }
schedules: { nightly: { message: OrderPlaced, every: 1h } }
`), environment(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Schedules["nightly"].Message; got != "OrderPlaced" {
		t.Errorf("message of the schedule = %q, want OrderPlaced", got)
	}
}

// The keys of a value of the wrong kind are not missing.
func TestAValueInPlaceOfAMappingIsOneError(t *testing.T) {
	for _, content := range []string{
		"transports: {async: 'amqp://h?queue=q'}\nrouting: {'*': async}\nworkers: {async: {}}",
		"transports: {async: ['amqp://h']}", "schedules: {nightly: 1h}", "outbox: strict", "workers: {}\ntransports: x",
	} {
		_, err := Parse("w.yaml", []byte(content), environment(nil))
		if errs := unwrapAll(err); len(errs) != 1 || !strings.Contains(errs[0].Problem, "where a mapping belongs") {
			t.Errorf("Parse(%q) = %v\nwant one error", content, err)
		}
	}
}

func TestWorkersWithoutAQueueOfTheirOwnAreRefused(t *testing.T) {
	const shared = `its queue is that of the worker "a" (a queue has one worker in a process`
	for dsns, want := range map[[2]string]string{
		{"amqp://h?queue=q", "amqp://h/%2f?queue=q&exchange=x&bind=x:y"}: shared,
		{"amqps://u:p@h/v?queue=q", "amqp://h/v?queue=q"}:                shared,
		{"amqps://h:5671?queue=q", "amqp://h?queue=q"}:                   shared,
		{"amqp://h:5672?queue=q", "amqp://h:5673?queue=q"}:               "",
		{"queue://q", "queue://q"}:                                       shared,
		{"queue://q", "queue://q?database=sqlite:%2F%2F.%2Fwaybill.db"}:  shared,
		{"queue://q", "queue://q?database=sqlite:%2F%2F.%2Fother.db"}:    "",
		{"queue://q", "queue://other"}:                                   "",
		{"amqp://h?queue=q", "amqp://h/v?queue=q"}:                       "",
		{"amqp://h?queue=q", "amqp://h?queue=r"}:                         "",
		{"amqp://h?queue=q", "amqp://h?exchange=x"}:                      "workers.b: the DSN of the transport names no queue to receive from (add the option queue",
		{"memory://", "memory://"}:                                       "",
	} {
		_, err := Parse("w.yaml", fmt.Appendf(nil, "transports:\n  a: {dsn: '%s'}\n  b: {dsn: '%s'}\nworkers: {a: {}, b: {}}", dsns[0], dsns[1]), environment(nil))
		if errs := unwrapAll(err); want == "" && err != nil || want != "" && (len(errs) != 1 || !strings.Contains(err.Error(), want)) {
			t.Errorf("workers of %v: %v, want %q", dsns, err, want)
		}
	}
}

func TestAllErrorsAreReportedAtOnceInOrder(t *testing.T) {
	_, err := Parse("w.yaml", []byte("databse: x\ntransports:\n  a: {dsn: 'amqp://h?x=1&bind=y'}\n  b: {}\nrouting: {'*': c}\ninbox: {retention: x}\n"), environment(nil))
	var lines []int
	for _, e := range unwrapAll(err) {
		lines = append(lines, e.Line)
	}
	if diff := cmp.Diff([]int{1, 3, 3, 4, 5, 6}, lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s\n%v", diff, err)
	}
}

func TestAnErrorHasItsParts(t *testing.T) {
	_, err := Parse("w.yaml", []byte("inbox: {retention: x}"), environment(nil))
	got, _ := errors.AsType[*Error](err)
	want := &Error{File: "w.yaml", Line: 1, Path: "inbox.retention", Value: "x", Problem: `"x" is not a duration (such as 15s, 1h30m or 30d)`}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Error{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMarshalledConfigsAreCompleteAndReadBack(t *testing.T) {
	const dollars = "\nschedules: { usd: { message: order.placed, every: 10m, key: $$, body: '{\"$$ref\": \"$${X}\"}' } }\n"
	text := strings.Replace(full, "exchange: payments, routing_key: payment", "exchange: $$payments, routing_key: pay$$", 1) + dollars
	c, err := Parse("waybill.yaml", []byte(text), environment(map[string]string{"PW": canary}))
	if err != nil {
		t.Fatal(err)
	}
	shown := c.Redacted()
	asYAML, err := yaml.Marshal(shown)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse("shown.yaml", asYAML, environment(nil))
	if err != nil {
		t.Fatalf("%v in\n%s", err, asYAML)
	}
	if diff := cmp.Diff(shown, back, unseen); diff != "" {
		t.Errorf("after YAML (-want +got):\n%s", diff)
	}
	asJSON, err := json.Marshal(shown)
	if err != nil {
		t.Fatal(err)
	}
	if back, err = Parse("shown.json", asJSON, environment(nil)); err != nil {
		t.Fatalf("%v in\n%s", err, asJSON)
	}
	if diff := cmp.Diff(shown, back, unseen); diff != "" {
		t.Errorf("after JSON (-want +got):\n%s", diff)
	}
}

func TestAConfigBuiltInCodeIsValidated(t *testing.T) {
	if err := new(Config).Validate(); err == nil || !strings.Contains(err.Error(), "database: no DSN") {
		t.Errorf("Validate of nothing = %v", err)
	}
	c := defaults()
	c.Database = MustParseDSN("sqlite://./a.db")
	if err := c.Validate(); err != nil {
		t.Errorf("Validate of the defaults = %v", err)
	}
}

func TestTheOnlyTransportIsTheOutboxTransport(t *testing.T) {
	one, two := map[string]Transport{"a": {}}, map[string]Transport{"a": {}, "b": {}}
	for _, c := range []struct {
		config *Config
		want   string
	}{
		{&Config{Transports: one}, "a"},
		{&Config{Transports: two, Outbox: Outbox{To: "b"}}, "b"},
		{&Config{Transports: two}, ""},
		{&Config{}, ""},
	} {
		got, err := c.config.OutboxTransport()
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("OutboxTransport = %q, %v, want %q", got, err, c.want)
		}
	}
}

func TestDefaultRetryCoversSixteenMinutes(t *testing.T) {
	for want, r := range map[time.Duration]Retry{
		16*time.Minute + 4*time.Second: DefaultRetry(),
		0:                              {Delay: time.Second, Multiplier: 3, MaxDelay: time.Minute},
		30 * time.Second:               {MaxRetries: 3, Delay: 10 * time.Second, Multiplier: 1, MaxDelay: time.Minute},
		1<<63 - 1:                      {MaxRetries: 10000, Delay: 100000 * time.Hour, Multiplier: 1, MaxDelay: 1<<63 - 1},
	} {
		if got := r.Window(); got != want {
			t.Errorf("Window of %+v = %v, want %v", r, got, want)
		}
	}
}
