package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/waycli"
)

// canary is the text of every password and body.
const canary = "s3cr3t-canary"

const secretFile = `
database: ${DATABASE:-sqlite://./waybill.db}
transports:
  events: { dsn: "queue://events?database=sqlite%3A%2F%2F.%2Fbroker.db" }
  broker: { dsn: "amqp://app:s3cr3t-canary@127.0.0.1:1/%2f?exchange=events&queue=events" }
  secure: { dsn: "amqps://app:s3cr3t-canary@127.0.0.1:1/%2f?exchange=events&ca=nowhere.pem" }
  remote: { dsn: "queue://q?database=postgres%3A%2F%2Fapp%3As3cr3t-canary%40127.0.0.1%3A1%2Fshop" }
  work:   { dsn: "queue://work" }
outbox: { to: events }
messages: { order.placed: {}, order.shipped: {} }
`

func TestNothingPrintsAPasswordOrABody(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("waybill.yaml", secretFile)
	write("wrong.yaml", "database: sqlite://./x.db\ntransports: { t: { dsn: amqp://app:s3cr3t-canary@@host } }\npassword: "+canary+"@x\n")
	write("broken.yaml", "database: [ \""+canary+"\n")
	write("wrong.jsonl", `{"name":"order.placed","body":"`+canary+`"} {"a":"`+canary+"\"}\n")
	write("broken.jsonl", `{"name":"order.placed","body":"`+canary+"\n")
	write("down.yaml", "transports: { events: { dsn: \"amqp://app:"+canary+"@127.0.0.1:1/?exchange=events\" } }\n")
	const dsn, mysql = "postgres://app:" + canary + "@127.0.0.1:1/shop", "mysql://app:" + canary + "@127.0.0.1:1/shop"
	body := `{"card":"` + canary + `"}`
	for _, args := range [][]string{
		{"schema", "up"},
		{"schema", "up", "--database", "sqlite://./broker.db"},
		{"dispatch", "order.placed", body, "--key", "k"},
		{"dispatch", "order.placed", body, "--to", "work"},
		{"dispatch", "order.placed", body + "}"},
		{"dispatch", "order.place", body},
		{"dispatch", "--from", "wrong.jsonl"},
		{"dispatch", "--from", "broken.jsonl"},
		{"outbox", "list"}, {"outbox", "blocked"}, {"outbox", "stats"}, {"stats"},
		{"consume", "work", "--exec", "exit 1", "--limit", "1"},
		{"consume", "work", "--exec", "true", "--idle-exit", "10ms"},
		{"consume", "broker", "--exec", "true"}, {"consume", "remote", "--exec", "true"}, {"consume", "secure", "--exec", "true"},
		{"schema", "up", "--transports"}, {"outbox", "release", "--all"}, {"relay", "--config", "down.yaml"},
		{"stats", "--database", dsn + "?sslrootcert=nowhere.pem"}, {"stats", "--database", dsn + "?sslmode=verify-full"},
		{"relay", "--drain"},
		{"config", "check"}, {"config", "show"}, {"debug", "routes"},
		{"inbox", "stats"}, {"inbox", "prune", "--yes"},
		{"stats", "--config", "wrong.yaml"}, {"stats", "--config", "broken.yaml"},
		{"relay", "--database", dsn + "?notify=true&listen=postgres:%2F%2Fapp:" + canary + "%40127.0.0.1:1%2Fshop"},
		{"stats", "--database", dsn + "?listen=postgres:%2F%2Fapp:" + canary + "%40%40h"}, {"stats", "--database", dsn + "?listen=" + canary},
		{"stats", "--database", dsn}, {"stats", "--database", dsn + "?sslmod=x"}, {"stats", "--database", "postgres://app:" + canary + "@"},
		{"stats", "--database", mysql}, {"stats", "--database", mysql + "?tls_ca=nowhere.pem"}, {"stats", "--database", mysql + "?tls=verify-full&tls_ca=secrets_test.go"},
		{"stats", "--database", "mysql://:" + canary + "@127.0.0.1:1/shop"}, {"schema", "print", "--database", mysql},
		{"stats", "--database", canary}, {"schema", "print", "--database", dsn},
	} {
		for _, mode := range [][]string{{"--log-level", "debug", "--log-format", "text"}, {"--log-level", "debug", "--json"}} {
			all := append(append([]string{}, args...), mode...)
			var stdout, stderr bytes.Buffer
			ctx, stop := context.WithTimeout(t.Context(), 2*time.Second) // a relay waits for its broker
			code := waycli.Main(ctx, app(), all, strings.NewReader(""), &stdout, &stderr)
			stop()
			for name, out := range map[string]string{"stdout": stdout.String(), "stderr": stderr.String()} {
				if strings.Contains(out, canary) {
					t.Errorf("waybill %s (exit %d): %s has the canary: %s", strings.Join(all, " "), code, name, out)
				}
			}
		}
	}
}

func TestEveryCommandIsDocumented(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		builtin := strings.Contains(path, " completion") || strings.Contains(path, " help")
		if cmd.Short == "" {
			t.Errorf("%s: no short description", path)
		}
		if !cmd.HasSubCommands() && !builtin && cmd.Long == "" {
			t.Errorf("%s: no long description", path)
		}
		for _, line := range strings.Split(cmd.Long, "\n") {
			if len(line) > 100 {
				t.Errorf("%s: a line of its help has %d bytes: %s", path, len(line), line)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(waycli.New(app()))
}

func TestJSONIsOneDocument(t *testing.T) {
	t.Chdir(t.TempDir())
	file := "transports: { work: { dsn: queue://work } }\nmessages: { order.placed: {} }\n"
	if err := os.WriteFile("waybill.yaml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"schema", "up"}, {"schema", "status"}, {"schema", "print"}, {"dispatch", "order.placed", "{}"},
		{"outbox", "list"}, {"outbox", "blocked"}, {"outbox", "stats"}, {"stats"}, {"inbox", "stats"}, {"inbox", "prune"},
		{"consume", "work", "--exec", "echo chatter", "--limit", "1"},
		{"config", "check"}, {"config", "show"}, {"debug", "routes"}, {"version"},
	} {
		var stdout, stderr bytes.Buffer
		if code := waycli.Main(t.Context(), app(), append(args, "--json"), strings.NewReader(""), &stdout, &stderr); code != 0 {
			t.Errorf("waybill %s: exit %d: %s", strings.Join(args, " "), code, stderr.String())
		}
		var doc map[string]any
		if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil {
			t.Errorf("waybill %s: %v in %s", strings.Join(args, " "), err, stdout.String())
		}
	}
}
