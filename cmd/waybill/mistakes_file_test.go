package main

import "testing"

var mistakesInTheFile = []mistake{
	{
		1, "an option of a DSN is misspelt",
		check(2, `transports: { events: { dsn: "amqp://localhost?exhange=events" } }`),
		[]string{`waybill.yaml:1: transports.events.dsn: unknown option "exhange"`, `did you mean "exchange"?`},
	},
	{
		2, "a key is misspelt",
		check(2, "transprots: { events: { dsn: queue://events } }\noutbox: { to: events }"),
		[]string{`waybill.yaml:1: unknown key "transprots"`, `did you mean "transports"?`, `waybill.yaml:2: outbox.to: unknown transport "events"`},
	},
	{
		3, "outbox.to is unknown",
		check(2, "transports: { events: { dsn: queue://events } }\noutbox: { to: evnts }"),
		[]string{`waybill.yaml:2: outbox.to: unknown transport "evnts"`, `did you mean "events"?`},
	},
	{
		4, "a route leads to an unknown transport",
		check(2, "transports: { mailq: { dsn: queue://mail } }\nrouting: { 'mail.*': mialq }"),
		[]string{`waybill.yaml:2: routing."mail.*": unknown transport "mialq"`, `did you mean "mailq"?`},
	},
	{
		5, "a scheme is misspelt",
		check(2, `transports: { events: { dsn: "ampq://localhost?exchange=events" } }`),
		[]string{`transports.events.dsn: unknown scheme "ampq"`, `did you mean "amqp"?`},
	},
	{
		6, "a password has a bare # or @",
		check(2, "transports:\n  a: { dsn: 'amqp://app:s3cr3t#1@localhost?exchange=a' }\n  b: { dsn: 'amqp://app:s3cr3t@1@localhost?exchange=b' }"),
		[]string{"waybill.yaml:2: transports.a.dsn: a bare #", "write it as %23", "waybill.yaml:3: transports.b.dsn: more than one @", "write every @ but the one before the host as %40"},
	},
	{
		7, "a key is indented too little",
		check(2, "transports:\n  events:\n    dsn: queue://events\n   retry: { delay: 1s }"),
		[]string{"waybill.yaml:4: not valid YAML", "is this line, or the next, indented deeper or less than its neighbours?"},
	},
	{
		8, "a message is named by its class",
		check(2, "transports: { events: { dsn: queue://events } }\nmessages: { App\\Message\\OrderPlaced: {} }"),
		[]string{`waybill.yaml:2: messages."App\\Message\\OrderPlaced": not a message name`, "a name is letters and digits, in parts joined by . _ or -"},
	},
	{
		9, "the retries of the outbox have the name of a transport's",
		check(2, "transports: { events: { dsn: queue://events } }\noutbox: { retry: { max_retries: 3 } }"),
		[]string{`waybill.yaml:2: outbox.retry: unknown key "max_retries"`, "keys: max_attempts"},
	},
	{
		10, "a duration has no unit",
		check(2, "inbox: { retention: 30 }"),
		[]string{`waybill.yaml:1: inbox.retention: "30" is not a duration (such as 15s, 1h30m or 30d)`},
	},
	{
		11, "the failure transport is a transport of Symfony",
		check(2, "transports:\n  failed: { dsn: 'doctrine://default?queue_name=failed' }\nfailure_transport: failed"),
		[]string{`waybill.yaml:2: transports.failed.dsn: unknown scheme "doctrine"`, "for a queue of waybill's own queue://NAME"},
	},
	{
		12, "a DSN is one of Doctrine",
		check(2, "transports: { events: { dsn: 'doctrine://default' } }"),
		[]string{`unknown scheme "doctrine"`, "for Symfony's table write symfony+mysql://user:password@host/database or symfony+postgres://..."},
	},
	{
		13, "a transport is at Redis",
		check(0, "transports: { events: { dsn: 'redis://localhost' } }"),
		[]string{"note: transports.events: this version cannot open redis://localhost: it opens amqp://, amqps://, queue:// in a database of: mysql, postgres, sqlite"},
	},
	{
		14, "an AMQP DSN names its exchange as Symfony's do",
		check(2, `transports: { events: { dsn: "amqp://localhost/%2f/messages" } }`),
		[]string{"transports.events.dsn: more than one / after the host", "what follows it is the virtual host; a / in it is written %2F"},
	},
	{
		15, "an environment variable is not set",
		check(2, "database: ${WAYBILL_TEST_NOT_SET}"),
		[]string{"waybill.yaml:1: database: the environment variable WAYBILL_TEST_NOT_SET is not set", "set it, or write ${WAYBILL_TEST_NOT_SET:-default}"},
	},
	{
		16, "the file is not there",
		command(2, "", "stats", "--config", "nowhere.yaml"),
		[]string{"nowhere.yaml: there is no such file", "give the path of one, or leave it out: then waybill.yaml is read if it exists"},
	},
	{
		17, "there is no configuration at all",
		command(2, "", "stats"),
		[]string{"there is no database at waybill.db", "create it with `waybill schema up --database sqlite://./waybill.db`", "comes from the default: name another with --database or in waybill.yaml"},
	},
	{
		18, "a section is unknown",
		check(2, "supervisor: { workers: 3 }"),
		[]string{`waybill.yaml:1: unknown key "supervisor"`, "keys: ", "transports"},
	},
	{
		19, "a line begins with a tab",
		check(2, "transports:\n\tevents: { dsn: queue://events }"),
		[]string{"waybill.yaml:2: not valid YAML", "YAML takes no tabs: indent with spaces"},
	},
	{
		20, "timeouts break the fence of a relay",
		check(2, "database: postgres://localhost/x\ntransports: { events: { dsn: 'amqp://localhost?exchange=events' } }\noutbox: { publish_deadline: 29s, idle_timeout: 30s }"),
		[]string{"the idle timeout 30s of the database is shorter than the publish deadline 29s", "raise the idle timeout to 46s", "set outbox.idle_timeout or outbox.publish_deadline, or the option heartbeat of transports.events.dsn"},
	},
}

// check runs waybill config check.
func check(exit int, file string) func(*testing.T) string {
	return command(exit, file, "config", "check")
}
