package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// canary is a password that must not be printed. It needs no escaping, so no
// encoding of it hides a leak.
const canary = "canary6d1f"

func TestNothingPrintsThePassword(t *testing.T) {
	d := MustParseDSN("amqp://u:" + canary + "@h/v?exchange=e")
	nested := MustParseDSN("queue://a?database=postgres:%2F%2Fu:" + canary + "%40h%2Fdb%3Flisten=postgres:%252F%252Fu:" + canary + "%2540h")
	type holder struct {
		Exported   DSN
		unexported DSN
		pointer    *DSN
	}
	type bare DSN // has no methods at all
	for name, v := range map[string]any{
		"dsn": d, "pointer": &d, "nested": nested, "bare": bare(d), "bare nested": bare(nested),
		"holder": holder{d, nested, &d}, "slice": []DSN{d, nested}, "map": map[string]DSN{"a": nested},
		"config": Config{Database: d, Transports: map[string]Transport{"a": {DSN: nested}}},
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s", "%T", "%p"} {
			refuseCanary(t, name+" "+verb, fmt.Sprintf(verb, v))
		}
		asJSON, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		refuseCanary(t, name+" JSON", string(asJSON))
		asYAML, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		refuseCanary(t, name+" YAML", string(asYAML))
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		refuseCanary(t, name+" slog", log.String())
	}
	if d.RevealPassword() != canary || !strings.Contains(d.Reveal(), canary) || strings.Count(nested.Reveal(), canary) != 2 {
		t.Error("the explicit methods do not give the password")
	}
}

func TestRedactedForgetsThePassword(t *testing.T) {
	d := MustParseDSN("queue://a?database=mysql:%2F%2Fu:" + canary + "%40h%2Fdb")
	c := &Config{
		Database:   MustParseDSN("mysql://u:" + canary + "@h"),
		Transports: map[string]Transport{"a": {DSN: d, Store: MustParseDSN("mysql://u:" + canary + "@h")}},
	}
	r := c.Redacted()
	refuseCanary(t, "Reveal", r.Database.Reveal()+r.Transports["a"].DSN.Reveal()+r.Transports["a"].Store.Reveal())
	if !strings.Contains(c.Database.Reveal(), canary) || !strings.Contains(c.Transports["a"].DSN.Reveal(), canary) {
		t.Error("Redacted changed the original")
	}
}

func TestErrorsNeverHoldThePassword(t *testing.T) {
	const p = canary
	for _, dsn := range []string{
		p, "u:" + p + "@h", "postgres:u:" + p + "@h", "postgres:/u:" + p + "@h",
		"postgrs://u:" + p + "@h/db", "POSTGRES://u:" + p + "@h",
		"postgres://u:" + p + "@h/db?nope=1", "postgres://u:" + p + "@h/db?sslmode=" + "nope",
		"postgres://u:" + p + "@h:port/db", "postgres://u:" + p + "@/db", "postgres://u:" + p + "@h/a/b",
		"postgres://u:" + p + "/" + p + "@h/db", "postgres://u:" + p + "?" + p + "=" + p + "@h/db",
		"postgres://u:" + p + "#" + p + "@h/db", "postgres://u:" + p + "@" + p + "@h/db",
		"postgres://u:" + p + "%@h/db", "postgres://u:" + p + " @h/db", "postgres://u:" + p + "\n@h/db",
		"postgres://u:" + p + "@h/db@x", "postgres://u:" + p + "@h/db?sslmode=a@b", "postgres://u:a@" + p + "/" + p + "@h/db",
		"postgres://u:" + p, "postgres://u:" + p + "/db", "postgres://u:1?" + p, "postgres://u:1?" + p + "&" + p,
		"sqlite://u:" + p + "@./x.db", "queue://u:" + p + "@h", "sync://u:" + p + "@h", "nats://" + p + "@h", "redis://" + p + "@h",
		"queue://a?database=postgres://u:" + p + "@h/db",
		"queue://a?database=postgres:%2F%2Fu:" + p + "%40h:port",
		"queue://a?database=postgres:%2F%2Fu:" + p + "%40h%3Fnope=1",
		"queue://a?database=postgres:%2F%2Fu:" + p + "%2Fq%40h",
		"queue://a?database=postgres:%2F%2Fu:" + p + "%00%40h%ff",
		"queue://a?database=amqp:%2F%2Fu:" + p + "%40h",
		"queue://a?lease=postgres:%2F%2Fu:" + p + "%40h", "amqp://h?bind=postgres:%2F%2Fu:" + p + "%40h,%2F%2F" + "x",
	} {
		_, err := ParseDSN(dsn)
		if err == nil {
			t.Errorf("ParseDSN(%q) = nil error", dsn)
			continue
		}
		refuseCanary(t, dsn, fmt.Sprintf("%v %+v %#v", err, err, unwrapAll(err)))
		for _, e := range unwrapAll(err) {
			refuseCanary(t, dsn, fmt.Sprintf("%+v", *e))
		}
	}
}

func TestErrorsOfAFileNeverHoldThePassword(t *testing.T) {
	const dsn = "amqp://u:" + canary + "@h/v"
	getenv := environment(map[string]string{"SECRET": canary, "DSN": dsn, "WAYBILL_DATABASE_URL": "postgers://u:" + canary + "@h"})
	for _, content := range []string{
		dsn, "database: " + dsn, "database: [" + dsn + "]", dsn + ": x", "transports: " + dsn, "outbox: {to: '" + dsn + "'}",
		"transports: {a: " + dsn + "}", "transports: {'" + dsn + "': {}}", "routing: {'" + dsn + "': '" + dsn + "'}",
		"messages: {'" + dsn + "': {x: y}}", "inbox: {retention: '" + dsn + "'}", "database: \"" + dsn,
		"database: " + dsn + "\n  x: y", "inbox: {retention: '${SECRET}'}", "inbox: {retention: '${DSN}'}",
		"outbox: {retry: {max_attempts: '${SECRET}'}, ordering: '${SECRET}'}", "database: '${DSN}'", "database: ${DSN}?x=y",
		"database: 'amqp://u:${SECRET}/@h'", "a: &x " + dsn + "\nb: *y", "? [" + dsn + "]\n: x", "a: !x " + dsn, "a: b: " + dsn,
	} {
		_, err := Parse("waybill.yaml", []byte(content), getenv)
		if err == nil {
			t.Errorf("Parse(%q) = nil error", content)
			continue
		}
		refuseCanary(t, content, fmt.Sprintf("%v %+v %#v", err, err, err))
		for _, e := range unwrapAll(err) {
			refuseCanary(t, content, fmt.Sprintf("%+v", *e))
		}
	}
}

// What is put into a value from elsewhere may be a secret in the wrong place.
func TestErrorsOfAFileShowValuesAsWritten(t *testing.T) {
	getenv := environment(map[string]string{
		"PW": canary, "LONG": canary + strings.Repeat("x", 80), "CODED": "%63anary6d1f", "DSN": "amqp://h?exchange=e&type=" + canary, "NAME": "amqp://h?" + canary + "=1",
	})
	for content, want := range map[string]string{
		"outbox: { to: '${PW}' }":                                           `unknown transport "${PW}"`,
		"outbox: { to: 'a-${PW}' }":                                         `unknown transport "a-${PW}"`,
		"routing: { '*': ['a', 'a', 'b', '${PW}'] }":                        `unknown transport "${PW}"`,
		"routing: { '*': ['${PW}', '${PW}'] }":                              `transport "${PW}" is named twice`,
		"transports: { a: { dsn: 'amqp://h?exchange=e&type=${PW}' } }":      `option "type": wrong value "${...}"`,
		"transports: { a: { dsn: 'amqp://h?exchange=e&type=x${LONG}' } }":   `option "type": wrong value "${...}"`,
		"transports: { a: { dsn: 'amqp://h?exchange=e&type=${CODED}' } }":   `option "type": wrong value "${...}"`,
		"transports: { a: { dsn: 'amqp://${PW}?exchange=e&type=topics' } }": `option "type": wrong value "topics"`,
		"transports: { a: { dsn: 'amqp://h?exchange=e&${PW}=1' } }":         `unknown option "${...}"`,
		"transports: { a: { dsn: '${DSN}' } }":                              `option "type": wrong value "${...}"`,
		"transports: { a: { dsn: '${NAME}' } }":                             `unknown option "${...}"`,
		"outbox: { to: events }":                                            `unknown transport "events"`,
		"outbox: { to: '${NONE:-events}' }":                                 `unknown transport "events"`,
	} {
		_, err := Parse("waybill.yaml", []byte(content), getenv)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", content, err, want)
			continue
		}
		refuseCanary(t, content, fmt.Sprintf("%v %+v %#v", err, err, err))
		for _, e := range unwrapAll(err) {
			refuseCanary(t, content, fmt.Sprintf("%+v", *e))
		}
	}
}

func refuseCanary(t *testing.T, what, printed string) {
	t.Helper()
	hex := fmt.Sprintf("%x", canary)
	if strings.Contains(printed, canary) || strings.Contains(strings.ToLower(printed), hex) {
		t.Errorf("%s holds the password:\n%s", what, printed)
	}
}

func environment(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}
