package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waycli"
)

var leaked [][]byte

// leakyBus is that of a program that leaks 1 MiB a message. It notes when a handler begins
// and ends, and the GOMEMLIMIT.
func leakyBus(context.Context, *waycli.Service) (*waybill.Bus, error) {
	bus := waybill.NewBus("leaky")
	waybill.Handle(bus, "leak", func(_ context.Context, m orderPlaced) error {
		note("began", m.OrderID)
		mebibyte := make([]byte, 1<<20)
		for i := range mebibyte {
			mebibyte[i] = 1
		}
		leaked = append(leaked, mebibyte)
		time.Sleep(20 * time.Millisecond)
		note("ended", m.OrderID)
		note("gomemlimit", strconv.FormatInt(debug.SetMemoryLimit(-1), 10))
		return nil
	})
	return bus, nil
}

func note(file, line string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(line + "\n")
		_ = f.Close()
	}
	if err != nil {
		panic(err)
	}
}

// A program that leaks ends at its memory limit, in good order, and the next one handles
// the rest.
func TestSuccessorOfALeakyWorkerGoesOn(t *testing.T) {
	const messages = 250
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(name string, args ...string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), self, args...)
		var errs strings.Builder
		cmd.Args[0], cmd.Dir, cmd.Stderr = name, dir, &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s%s", name, args, err, out, &errs)
		}
		return string(out), errs.String()
	}
	lines := func(file string) []string {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}
	var orders strings.Builder
	for n := range messages {
		fmt.Fprintf(&orders, `{"name":"order.placed","key":"k","body":{"orderId":"o-%d"}}`+"\n", n)
	}
	for name, text := range map[string]string{
		"orders.jsonl": orders.String(), "waybill.yaml": "database: sqlite://./waybill.db\ntransports: { work: { dsn: queue://work } }\nmessages: { order.placed: {} }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run("waybill", "schema", "up")
	run("waybill", "dispatch", "--from", "orders.jsonl")
	var result struct {
		Reason          string
		Handled, Failed int
	}
	consume := func(wantReason string, args ...string) {
		t.Helper()
		out, log := run("leaky", append([]string{"consume", "work", "--json"}, args...)...)
		if err := json.Unmarshal([]byte(out), &result); err != nil || result.Reason != wantReason || result.Failed != 0 {
			t.Fatalf("it ended with %s, %v, want %q\n%s", out, err, wantReason, log)
		}
		if strings.Contains(wantReason, "limit") && !strings.Contains(log, `"msg":"limit reached","limit":"memory","detail":"1`) {
			t.Errorf("the limit is not in the log:\n%s", log)
		}
	}
	consume("memory limit", "--memory-limit", "128MiB")
	began, ended := lines("began"), lines("ended")
	if !slices.Equal(began, ended) || len(ended) != result.Handled || len(ended) == 0 || len(ended) == messages {
		t.Errorf("%d handlers began, %d ended, %d messages count as handled of %d", len(began), len(ended), result.Handled, messages)
	}
	if limits := slices.Compact(lines("gomemlimit")); len(limits) != 1 || limits[0] != strconv.Itoa(128<<20/10*9) {
		t.Errorf("GOMEMLIMIT is %v, want nine tenths of 128 MiB", limits)
	}
	consume("finished", "--idle-exit", "1s")
	ended = lines("ended")
	for i, order := range ended {
		if want := fmt.Sprintf("o-%d", i); order != want {
			t.Fatalf("message %d handled is %s, want each once and in order", i, order)
		}
	}
	if len(ended) != messages {
		t.Errorf("%d messages were handled, want %d", len(ended), messages)
	}
}
