package main

import (
	"database/sql"
	"net/url"
	"testing"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
)

// mailFile has a queue, which needs no server.
const mailFile = "transports: { mail: { dsn: queue://mail } }\nmessages: { order.placed: {}, order.shipped: {} }"

// deadBroker is a transport that is out of reach.
const deadBroker = "database: ${DATABASE:-sqlite://./waybill.db}\n" +
	"transports: { events: { dsn: 'amqp://app:s3cr3t@127.0.0.1:1?exchange=events&queue=events' } }\nmessages: { order.placed: {} }"

var mistakesWithCommands = []mistake{
	{
		21, "a command comes before the tables",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			writeFile(t, "waybill.yaml", mailFile)
			writeFile(t, "waybill.db", "")
			return say(t, 2, "dispatch", "order.placed", "{}")
		},
		[]string{"waybill.db has no waybill tables (prefix waybill_)", "run `waybill schema up` first, with the same --config or --database"},
	},
	{
		22, "a program comes before the tables",
		func(t *testing.T) string {
			_, err := outbox.New(openDB(t), outbox.Config{})
			return refusal(t, err)
		},
		[]string{"shop.db has no waybill tables", "`waybill schema up`", "SchemaUp"},
	},
	{
		23, "a worker comes before its queue",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			writeFile(t, "waybill.yaml", "transports: { work: { dsn: '"+testserver.RabbitMQ(t)+"?queue=work' } }\nmessages: { order.placed: {} }")
			say(t, 0, "schema", "up")
			return say(t, 3, "consume", "work", "--exec", "true")
		},
		[]string{"queue work: not found", "it does not exist, `waybill schema up --transports` declares it", "404 NOT_FOUND"},
	},
	{
		24, "the broker's password is wrong",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			writeFile(t, "waybill.yaml", "transports: { work: { dsn: '"+withStranger(t, testserver.RabbitMQ(t))+"?queue=work' } }")
			return say(t, 6, "schema", "up", "--transports")
		},
		[]string{`transport "work": unavailable: connect: username or password not allowed`, "amqp://nobody:***@", "comes from waybill.yaml:1"},
	},
	{
		25, "an idle relay has no broker",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			t.Setenv("DATABASE", testserver.Postgres(t))
			writeFile(t, "waybill.yaml", deadBroker)
			say(t, 0, "schema", "up")
			drain := say(t, 6, "relay", "--drain")
			started(t, "the broker is not available, the relay will try again", "relay")
			return drain + until(t, "cannot publish", func() string { return say(t, 0, "stats") })
		},
		[]string{`waybill: transport "events": unavailable: connect: dial tcp 127.0.0.1:1`, "check that the broker runs there", "cannot publish for "},
	},
	{
		26, "a worker starts while the broker is down",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			writeFile(t, "waybill.yaml", deadBroker)
			say(t, 0, "schema", "up")
			return say(t, 6, "consume", "events", "--exec", "true")
		},
		[]string{`waybill: transport "events": unavailable: connect: dial tcp 127.0.0.1:1`, "hint: check that the broker runs there"},
	},
	{
		27, "messages wait while the broker is down",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			t.Setenv("DATABASE", testserver.Postgres(t))
			writeFile(t, "waybill.yaml", deadBroker)
			say(t, 0, "schema", "up")
			say(t, 0, "dispatch", "order.placed", "{}")
			started(t, "the broker is not available", "relay")
			until(t, "cannot publish", func() string { return say(t, 0, "stats") })
			return say(t, 7, "stats", "--fail-if", "oldest_age>1ms")
		},
		[]string{"cannot publish for ", "check failed: oldest_age is "},
	},
	{
		28, "the database's password is wrong",
		func(t *testing.T) string {
			return command(2, mailFile, "stats", "--database", withStranger(t, testserver.MariaDB(t)))(t)
		},
		[]string{"Access denied for user 'nobody'", "check user and password (a special character in them is written as %xx)", "comes from --database"},
	},
	{
		29, "the database is missing",
		func(t *testing.T) string {
			u := parseURL(t, testserver.Postgres(t))
			u.Path = "/nope"
			return command(2, mailFile, "stats", "--database", u.String())(t)
		},
		[]string{`database "nope" does not exist`, "waybill creates tables, not databases: `createdb nope` does"},
	},
	{
		30, "the database is down",
		command(6, "database: postgres://app:s3cr3t@127.0.0.1:1/shop", "stats"),
		[]string{"unavailable: dial tcp 127.0.0.1:1", "check that the database runs there", "comes from waybill.yaml:1"},
	},
	{
		31, "a message is unknown",
		dispatch("order.place", "{}"),
		[]string{`unknown message name "order.place": known are order.placed, order.shipped`, `did you mean "order.placed"?`},
	},
	{
		32, "a body is not JSON",
		dispatch("order.placed", "{n:1}"),
		[]string{"body of order.placed: it is not JSON", "at byte 2", "nothing was dispatched"},
	},
	{
		33, "a header is one of waybill's",
		dispatch("order.placed", "{}", "--header", "x-message-id=1"),
		[]string{`header name "x-message-id": waybill or the broker uses it: choose another`, "nothing was dispatched"},
	},
	{
		34, "transport, command, flag and figure are misspelt",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			writeFile(t, "waybill.yaml", mailFile)
			say(t, 0, "schema", "up")
			return say(t, 2, "consume", "mial", "--exec", "true") + say(t, 2, "statz") + say(t, 2, "stats", "--fali-if", "pending>1") + say(t, 2, "stats", "--fail-if", "pendin>1")
		},
		[]string{
			`unknown transport "mial"`, `did you mean "mail"?`, `unknown command "statz"`, `did you mean "stats"?`,
			"unknown flag: --fali-if", `did you mean "--fail-if"?`, `unknown figure "pendin"`, `did you mean "pending"?`,
		},
	},
	{
		35, "a worker has no handlers",
		command(2, mailFile, "consume", "mail"),
		[]string{"waybill has no handlers of its own", "run a command for each message with --exec CMD of consume, or mount these commands in a binary with your handlers"},
	},
	{
		36, "two relays have one SQLite file",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			writeFile(t, "waybill.yaml", deadBroker)
			say(t, 0, "schema", "up")
			started(t, "relay started", "relay")
			return say(t, 4, "relay", "--drain")
		},
		[]string{"another process relays this database", "stop the other one, or let `waybill relay --standby` wait to take over"},
	},
	{
		37, "there is no terminal to ask on",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			writeFile(t, "waybill.yaml", mailFile)
			say(t, 0, "schema", "up")
			db, err := sql.Open("sqlite", "waybill.db")
			fatal(t, err)
			defer func() { _ = db.Close() }()
			_, err = db.ExecContext(t.Context(), "INSERT INTO waybill_inbox VALUES ('h', 'd', x'00000000000000000000000000000001', 1)")
			fatal(t, err)
			return say(t, 4, "inbox", "prune") + say(t, 0, "inbox", "prune", "--dry-run")
		},
		[]string{"There is no terminal to ask on", "--yes does it without asking"},
	},
	{
		38, "the inbox is pruned below its retention",
		func(t *testing.T) string {
			t.Chdir(t.TempDir())
			writeFile(t, "waybill.yaml", mailFile)
			say(t, 0, "schema", "up")
			return say(t, 4, "inbox", "prune", "--older-than", "1h", "--yes")
		},
		[]string{"--older-than 1h is less than inbox.retention, 30d: a message handled between the two could be handled again", "lower inbox.retention first"},
	},
	{
		39, "the inbox forgets before the last retry",
		check(2, "transports: { mail: { dsn: queue://mail, retry: { max_retries: 5, delay: 1m } } }\ninbox: { retention: 1m }"),
		[]string{`waybill.yaml:2: inbox.retention: 1m is not longer than the retries of transport "mail", 20m54s with jitter`, "raise it, or lower the retries of the transport"},
	},
}

// dispatch is a dispatch of messages that are known.
func dispatch(args ...string) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		t.Chdir(t.TempDir())
		writeFile(t, "waybill.yaml", mailFile)
		say(t, 0, "schema", "up")
		return say(t, 2, append([]string{"dispatch"}, args...)...)
	}
}

// withStranger returns dsn with an unknown user.
func withStranger(t *testing.T, dsn string) string {
	t.Helper()
	u := parseURL(t, dsn)
	u.User = url.UserPassword("nobody", password)
	return u.String()
}

func parseURL(t *testing.T, dsn string) *url.URL {
	t.Helper()
	u, err := url.Parse(dsn)
	fatal(t, err)
	return u
}
