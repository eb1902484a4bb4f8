package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDSNParts(t *testing.T) {
	type parts struct{ Scheme, User, Password, Host, Path string }
	for _, c := range []struct {
		dsn  string
		want parts
	}{
		{"sqlite://./waybill.db", parts{Scheme: "sqlite", Path: "./waybill.db"}},
		{"sqlite://../a%20b%3F.db", parts{Scheme: "sqlite", Path: "../a b?.db"}},
		{"sqlite:///var/lib/zażółć.db", parts{Scheme: "sqlite", Path: "/var/lib/zażółć.db"}},
		{"postgres://app:pw@db:5432/shop", parts{"postgres", "app", "pw", "db:5432", "shop"}},
		{"postgresql://db/shop", parts{Scheme: "postgres", Host: "db", Path: "shop"}},
		{"mysql://app@db/shop", parts{Scheme: "mysql", User: "app", Host: "db", Path: "shop"}},
		{"mariadb://db", parts{Scheme: "mysql", Host: "db"}},
		{"amqp://guest:guest@localhost:5672/%2f?exchange=events", parts{"amqp", "guest", "guest", "localhost:5672", "/"}},
		{"amqp://localhost", parts{Scheme: "amqp", Host: "localhost"}},
		{"amqps://a%40b:p%3Aq%2Fr%3F%23%25+@h/v%20w", parts{"amqps", "a@b", "p:q/r?#%+", "h", "v w"}},
		{"amqp://u:p:q@[::1]:5672/", parts{"amqp", "u", "p:q", "[::1]:5672", ""}},
		{"redis://:pw@localhost:6379/2", parts{"redis", "", "pw", "localhost:6379", "2"}},
		{"nats://:token@h1:4222,h2:4222", parts{"nats", "", "token", "h1:4222,h2:4222", ""}},
		{"kafka://h1:9092,h2:9092/orders", parts{"kafka", "", "", "h1:9092,h2:9092", "orders"}},
		{"queue://failed_orders", parts{Scheme: "queue", Host: "failed_orders"}},
		{"memory://", parts{Scheme: "memory"}},
		{"memory://orders", parts{Scheme: "memory", Host: "orders"}},
		{"sync://", parts{Scheme: "sync"}},
		{"symfony+mysql://u:p@h/db", parts{"symfony+mysql", "u", "p", "h", "db"}},
		{"symfony+postgres://u:p@h/db", parts{"symfony+postgres", "u", "p", "h", "db"}},
	} {
		d, err := ParseDSN(c.dsn)
		if err != nil {
			t.Errorf("ParseDSN(%q): %v", c.dsn, err)
			continue
		}
		got := parts{d.Scheme, d.User, d.RevealPassword(), d.Host, d.Path}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("ParseDSN(%q) (-want +got):\n%s", c.dsn, diff)
		}
	}
}

func TestDSNOptionsHaveTheirTypes(t *testing.T) {
	d := MustParseDSN("queue://orders?lease=1d&prefetch=20&ordered=true&database=sqlite%3A%2F%2F.%2Fo.db%3Fsynchronous%3Dnormal")
	if got := d.Duration("lease", 15*time.Second); got != 24*time.Hour {
		t.Errorf("lease = %v, want 24h", got)
	}
	if got := d.Int("prefetch", 1); got != 20 {
		t.Errorf("prefetch = %d, want 20", got)
	}
	if !d.Bool("ordered", false) {
		t.Error("ordered = false, want true")
	}
	nested, ok := d.DSN("database")
	if !ok || nested.Path != "./o.db" || nested.Enum("synchronous", "full") != "normal" {
		t.Errorf("database = %v, %v, want sqlite://./o.db?synchronous=normal", nested, ok)
	}
	broker := MustParseDSN("amqp://h?bind=events:order.*,events:a%2Cb,logs:%23&routing_key=a+b%20c")
	if diff := cmp.Diff([]string{"events:order.*", "events:a,b", "logs:#"}, broker.List("bind")); diff != "" {
		t.Errorf("bind (-want +got):\n%s", diff)
	}
	if got := broker.Text("routing_key", ""); got != "a+b c" {
		t.Errorf("routing_key = %q, want the plus sign kept", got)
	}
}

func TestDSNOptionsThatAreAbsentAreTheFallback(t *testing.T) {
	q, s, a := MustParseDSN("queue://orders"), MustParseDSN("sqlite://./w.db"), MustParseDSN("amqp://h")
	if q.Duration("lease", 15*time.Second) != 15*time.Second || q.Int("prefetch", 7) != 7 || !q.Bool("ordered", true) {
		t.Error("an absent option of queue is not the fallback")
	}
	if s.Enum("synchronous", "full") != "full" || s.Text("prefix", "waybill_") != "waybill_" {
		t.Error("an absent option of sqlite is not the fallback")
	}
	if _, ok := q.DSN("database"); ok || a.List("bind") != nil {
		t.Error("an absent dsn or list is there")
	}
}

func TestAskingForAnOptionTheSchemeDoesNotHavePanics(t *testing.T) {
	for name, ask := range map[string]func(DSN){
		"unknown name": func(d DSN) { d.Duration("laese", 0) },
		"other type":   func(d DSN) { d.Int("lease", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			ask(MustParseDSN("queue://orders"))
		})
	}
}

func TestOrderedSchemeIsTheOptionOrdered(t *testing.T) {
	for alias, want := range map[string]string{
		"ordered-queue://a":             "queue://a?ordered=true",
		"ordered-queue://a?lease=5s":    "queue://a?ordered=true&lease=5s",
		"ordered-symfony+mysql://h/db":  "symfony+mysql://h/db?ordered=true",
		"ordered-symfony+postgres://h/": "symfony+postgres://h?ordered=true",
	} {
		got, err := ParseDSN(alias)
		if err != nil || !got.Equal(MustParseDSN(want)) {
			t.Errorf("ParseDSN(%q) = %v, %v, want %s", alias, got, err, want)
		}
	}
}

func TestWrongDSNsSayWhatToWrite(t *testing.T) {
	for dsn, want := range map[string]string{
		"":                                          "not a DSN",
		"waybill.db":                                "not a DSN",
		"host=db user=app dbname=shop":              "such as postgres://app@localhost/shop, mysql://app@localhost/shop,",
		"kafak://h":                                 `unknown scheme "kafak" (did you mean "kafka"?)`,
		"postgress://h":                             `did you mean "postgres"?`,
		"ordered-quue://h":                          `unknown scheme "ordered-quue" (did you mean "queue"?)`,
		"doctrine://default":                        `unknown scheme "doctrine" (for Symfony's table write symfony+mysql://`,
		"amqp://h?exhange=events":                   `dsn: unknown option "exhange" (did you mean "exchange"?)`,
		"queue://a?zzzzzzzz=1":                      `unknown option "zzzzzzzz" (options of queue: database, ordered, lease, prefetch)`,
		"memory://a?ordered=true":                   `unknown option "ordered" (there are no options of memory)`,
		"ordered-amqp://h":                          `unknown option "ordered"`,
		"queue://a?lease=5":                         `option "lease": wrong value "5" (it takes a duration above zero, such as 15s, 1h30m or 30d)`,
		"queue://a?lease=0s":                        `option "lease": wrong value "0s"`,
		"queue://a?lease=":                          `option "lease": wrong value ""`,
		"queue://a?lease":                           `option "lease": wrong value ""`,
		"queue://a?prefetch=0":                      `option "prefetch": wrong value "0" (it takes a whole number from 1 to 65535)`,
		"queue://a?ordered=yes":                     `option "ordered": wrong value "yes" (it takes true or nothing: a queue always keeps the order of each key)`,
		"queue://a?ordered=false":                   `option "ordered": wrong value "false" (it takes true or nothing: a queue always keeps the order of each key)`,
		"sqlite://./a?synchronous=off":              `option "synchronous": wrong value "off" (it takes full, normal)`,
		"sqlite://./a?prefix=1a":                    `option "prefix": wrong value "1a" (it takes a table prefix`,
		"sqlite://./a?prefix=Way_":                  `option "prefix": wrong value "Way_"`,
		"amqp://h?bind=events":                      `option "bind": wrong value "events" (it takes a list of exchange:key)`,
		"queue://a?lease=%00":                       `option "lease": wrong value "***"`,
		"queue://a?ordered=true&ordered=true":       `option "ordered" is given twice`,
		"ordered-queue://a?ordered=false":           `option "ordered" is given twice`,
		"queue://a?":                                "an empty option",
		"queue://a?lease=1s&":                       "an empty option",
		"ordered-queue://a?":                        "an empty option",
		"queue://a?wat":                             "an option without a value",
		"queue://a?database=redis%3A%2F%2Fh":        `option "database": scheme "redis" does not fit`,
		"queue://a?database=sqlite:%2F%2F./b?x=y":   "a bare ? in an option",
		"queue://a?database=sqlite%3A%2F%2Fb":       `option "database": sqlite needs the path of a file`,
		"queue://a?database=sqlite:%2F%2F./b%3Fx=y": `option "database": unknown option "x"`,
		"queue://":                                  "queue needs a name",
		"queue://a/b":                               "queue needs a name",
		"queue://u:p@a":                             "queue takes no user and password",
		"sync://a":                                  "sync takes nothing after ://",
		"sqlite://waybill.db":                       "sqlite needs the path of a file",
		"sqlite://:memory:":                         "sqlite needs the path of a file",
		"sqlite://":                                 "sqlite needs the path of a file",
		"sqlite://./a/":                             "sqlite needs the path of a file",
		"amqp://":                                   "no host",
		"amqp://u:p@/v":                             "no host",
		"amqp://h:x":                                "not a host, or a port that is not a number",
		"amqp://h:0":                                "a port that is not between 1 and 65535",
		"amqp://h:65536":                            "a port that is not between 1 and 65535",
		"amqp://a,b":                                "more than one host",
		"amqp://h/vhost/exchange":                   "more than one / after the host (what follows it is the virtual host",
		"redis://h/messages":                        "not a database number",
		"nats://h/x":                                "nats takes no path",
		"nats://token@h":                            "a user without a password (a token is a password: write nats://:TOKEN@host)",
		"amqp://u:p@q@h":                            "more than one @",
		"amqp://u:p/q@h":                            "a bare / or ? before an @",
		"amqp://u:p?q@h":                            "a bare / or ? before an @",
		"amqp://u:p#q@h":                            "a bare #",
		"amqp://u:p%q@h":                            "a % that is not followed",
		"amqp://u:p q@h":                            "a space, line break or control character",
		"amqp://h\n":                                "a space, line break or control character",
		"amqp://u:p@h/\xff":                         "not UTF-8",
		"amqp://u%00:p@h":                           "a control character in the user",
		"amqp://u:p@h/%0a":                          "a control character in the path",
		"amqp://h?queue=a%0a":                       `option "queue": wrong value "***"`,
		"://x":                                      "not a DSN",
		"user:pw@host/db":                           "not a DSN",
		"queue://" + strings.Repeat("a", 65):        "at most 64",
	} {
		d, err := ParseDSN(dsn)
		if err == nil || !strings.Contains(err.Error(), want) || !d.IsZero() {
			t.Errorf("ParseDSN(%q) = %v, %v\nwant an error with %q", dsn, d, err, want)
		}
	}
}

func TestEveryWrongOptionIsReported(t *testing.T) {
	_, err := ParseDSN("queue://a?lease=x&ordred=true&prefetch=0")
	if got := unwrapAll(err); len(got) != 3 {
		t.Errorf("got %d errors, want 3:\n%v", len(got), err)
	}
}

func TestStringIsCanonicalAndParses(t *testing.T) {
	for dsn, want := range map[string]string{
		"mariadb://u:p@h:3306/a%2Fb?prefix=x_":     "mysql://u:***@h:3306/a%2Fb?prefix=x_",
		"amqp://u@h/%2f?type=topic&exchange=a%20b": "amqp://u@h/%2F?exchange=a%20b&type=topic",
		"amqp://h?bind=e:a,e:b%2Cc":                "amqp://h?bind=e:a,e:b%2Cc",
		"amqp://:@h":                               "amqp://:***@h",
		"queue://a?lease=48h":                      "queue://a?lease=2d",
		"sqlite://./a%25b":                         "sqlite://./a%25b",
		"ordered-queue://a":                        "queue://a?ordered=true",
		"queue://a?database=mysql:%2F%2Fu:pw%40h":  "queue://a?database=mysql%3A%2F%2Fu%3A%2A%2A%2A%40h",
		"sync://": "sync://",
	} {
		d := MustParseDSN(dsn)
		if d.String() != want {
			t.Errorf("ParseDSN(%q).String() = %q, want %q", dsn, d, want)
		}
		if _, err := ParseDSN(d.String()); err != nil {
			t.Errorf("ParseDSN(%q): %v", d, err)
		}
		if !MustParseDSN(d.Reveal()).Equal(d) {
			t.Errorf("ParseDSN(%q) and back is not the same", dsn)
		}
	}
}
