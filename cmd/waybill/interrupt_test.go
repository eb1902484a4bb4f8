package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waysqlite"
)

// One signal ends a command that has no work to finish.
func TestInterruptEndsTheWaitForStandardInput(t *testing.T) {
	t.Chdir(t.TempDir())
	file := "transports: { work: { dsn: queue://work } }\nmessages: { order.placed: {} }\n"
	if err := os.WriteFile("waybill.yaml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := waycli.Main(t.Context(), app(), []string{"schema", "up"}, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatalf("schema up: exit %d: %s", code, stderr.String())
	}
	for _, c := range []struct {
		args  []string
		input string
		code  int
		says  string
	}{
		{[]string{"dispatch", "order.placed"}, `{"a":`, 130, "waybill: interrupted\n"},
		{[]string{"dispatch", "--from", "-"}, `{"name":"order.placed","body":1}` + "\n", 130, "waybill: interrupted\nhint: nothing was dispatched\n"},
		{[]string{"dispatch", "--from", "-", "--batch", "1"}, `{"name":"order.placed","body":1}` + "\n", 5, "resume from line 2"},
	} {
		stdout.Reset()
		stderr.Reset()
		ctx, cancel := context.WithCancel(t.Context())
		in, feed := io.Pipe()
		go func() {
			_, _ = io.WriteString(feed, c.input)
			_, _ = feed.Write([]byte(" ")) // accepted once the earlier bytes were read
			cancel()
		}()
		code := waycli.Main(ctx, app(), c.args, in, &stdout, &stderr)
		_ = in.Close()
		cancel()
		if code != c.code || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("waybill %s: exit %d with %q, want %d with %q", strings.Join(c.args, " "), code, stderr.String(), c.code, c.says)
		}
	}
}

// A drain that a signal ends is not done, and prints its counts.
func TestInterruptedDrainExitsWith130(t *testing.T) {
	t.Chdir(t.TempDir())
	file := "database: sqlite://./waybill.db\ntransports: { events: { dsn: 'queue://events?database=sqlite%3A%2F%2F.%2Fbroker.db' } }\n"
	if err := os.WriteFile("waybill.yaml", []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	for _, args := range [][]string{{"schema", "up"}, {"schema", "up", "--database", "sqlite://./broker.db"}} {
		if code := waycli.Main(t.Context(), app(), args, strings.NewReader(""), &stdout, &stderr); code != 0 {
			t.Fatalf("%s: exit %d: %s", args, code, stderr.String())
		}
	}
	stdout.Reset()
	db, err := waysqlite.Open(t.Context(), "waybill.db", waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	release, err := db.StartRelay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	log := &signalAt{text: "standing by", signal: signal}
	code := waycli.Main(ctx, app(), []string{"relay", "--drain", "--standby", "--json"}, strings.NewReader(""), &stdout, log)
	if want := `{"reason":"stopped","published":0,`; code != 130 || !strings.HasPrefix(stdout.String(), want) {
		t.Errorf("exit %d with %q, want 130 with %s; it said %q", code, stdout.String(), want, log.String())
	}
}

// signalAt is a standard error at whose text a signal comes.
type signalAt struct {
	bytes.Buffer
	text   string
	signal func()
}

func (w *signalAt) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.text) {
		w.signal()
	}
	return w.Buffer.Write(p)
}
