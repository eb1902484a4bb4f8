package config

import (
	"maps"
	"regexp"
	"slices"
)

// A scheme defines the parts and the options of its DSNs.
type scheme struct {
	shape   shape
	path    string // meaning of the path of a server, for errors; empty: no path allowed
	many    bool   // several servers, separated by commas
	token   bool   // takes a password alone: a lone user would be a secret in the clear
	stores  bool   // can hold waybill's tables
	options []option
	lacks   map[string]string // options of similar schemes, and why they are not here
}

// A shape is the form of a DSN after the scheme.
type shape int

const (
	serverShape  shape = iota // user:password@host:port/path
	fileShape                 // ./relative or /absolute
	nameShape                 // NAME
	optionalName              // NAME or nothing
	emptyShape                // nothing
)

var (
	identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,30}$`)
	binding    = regexp.MustCompile(`^[^:]+:`)

	tablePrefix = pattern("prefix", identifier, "a table prefix: a to z, 0 to 9 and _, at most 31, no digit first")
	prefetch    = whole("prefetch", 1, 65535)
	ordered     = boolean("ordered")
	keepsOrder  = option{name: "ordered", kind: boolKind, words: []string{"true"}, accepts: "true or nothing: a queue always keeps the order of each key"}

	noNotify = "MySQL and MariaDB have no NOTIFY: relays look for messages every 250 ms, or more often"

	postgresTLS = []option{
		enum("sslmode", "disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
		text("sslrootcert"), text("sslcert"), text("sslkey"),
	}
	mysqlTLS     = []option{enum("tls", "disable", "prefer", "require", "verify-full"), text("tls_ca")}
	symfonyTable = []option{
		text("table_name"), text("queue_name"), duration("redeliver_timeout"), ordered, prefetch,
	}
	amqp = []option{
		text("exchange"), enum("type", "topic", "direct", "fanout", "headers"), text("routing_key"),
		text("queue"), enum("queue_type", "classic", "quorum"), boolean("single_active_consumer"),
		list("bind", binding, "a list of exchange:key"), prefetch, seconds("heartbeat", 1, 60),
		boolean("key_header"),
	}
)

var schemes = map[string]scheme{
	"sqlite": {shape: fileShape, stores: true, options: []option{
		enum("synchronous", "full", "normal"), duration("busy_timeout"), tablePrefix,
	}},
	"postgres": {path: "database", stores: true, options: slices.Concat(postgresTLS, []option{
		pattern("schema", identifier, "a schema name: a to z, 0 to 9 and _, at most 31, no digit first"),
		tablePrefix, nested("listen", "postgres"), boolean("notify"), seconds("connect_timeout", 1, 600),
	})},
	"mysql": {path: "database", stores: true, options: slices.Concat(mysqlTLS, []option{
		tablePrefix, duration("connect_timeout"),
	}), lacks: map[string]string{"notify": noNotify, "listen": noNotify}},
	"queue": {shape: nameShape, options: []option{
		nested("database", "sqlite", "postgres", "mysql"), keepsOrder, duration("lease"), prefetch,
	}},
	"memory": {shape: optionalName},
	"sync":   {shape: emptyShape},
	"amqp":   {path: "virtual host", options: amqp},
	"amqps": {path: "virtual host", options: slices.Concat(amqp, []option{
		text("ca"), text("cert"), text("key"), text("server_name"),
	})},
	"redis":            {path: "database number", token: true, options: []option{text("stream"), text("group"), boolean("tls"), prefetch}},
	"nats":             {many: true, token: true, options: []option{text("stream"), text("consumer"), boolean("tls"), prefetch}},
	"kafka":            {path: "topic", many: true, options: []option{text("group"), boolean("tls"), prefetch}},
	"symfony+mysql":    {path: "database", options: slices.Concat(symfonyTable, mysqlTLS)},
	"symfony+postgres": {path: "database", options: slices.Concat(symfonyTable, postgresTLS)},
}

// aliases maps further names of schemes to their canonical names.
var aliases = map[string]string{"postgresql": "postgres", "mariadb": "mysql"}

func lookupScheme(word string) (canonical string, s scheme, ok bool) {
	if of, ok := aliases[word]; ok {
		word = of
	}
	s, ok = schemes[word]
	return word, s, ok
}

func schemeNames() []string {
	return slices.Sorted(maps.Keys(schemes))
}
