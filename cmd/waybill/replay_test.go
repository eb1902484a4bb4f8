package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waycli"
)

var letters = flag.Int("letters", 1000, "dead letters of TestReplayOfManyEndsWithExactCounts; the promise is for 10000")

// A replayer is a binary whose handler fails for good until it is mended, then with odd
// messages only.
type replayer struct {
	*testing.T
	file            string
	mended          atomic.Bool
	handled, failed atomic.Int64
}

func newReplayer(t *testing.T, database string) *replayer {
	r := &replayer{T: t, file: filepath.Join(t.TempDir(), "waybill.yaml")}
	r.write(r.file, fmt.Sprintf(`
database: %q
transports: { catalog_sync: { dsn: "queue://catalog_sync" } }
outbox: { to: catalog_sync }
routing: { product.availability: catalog_sync }
`, database))
	r.command(0, "schema", "up")
	return r
}

func (r *replayer) write(file, text string) {
	r.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
}

func (r *replayer) bus(context.Context, *config.Config) (*waybill.Bus, error) {
	bus := waybill.NewBus("catalog")
	waybill.Handle(bus, "sync", func(_ context.Context, m availability) error {
		if r.mended.Load() && m.N%2 == 0 {
			r.handled.Add(1)
			return nil
		}
		r.failed.Add(1)
		return waybill.Unrecoverable(errors.New("no price"))
	})
	return bus, nil
}

// run runs a command, and returns its exit code and its output as JSON.
func (r *replayer) run(ctx context.Context, args ...string) (exit int, stdout, stderr string) {
	var out, log bytes.Buffer
	app := waycli.App{Name: "catalog", Databases: everyDatabase, Bus: r.bus}
	exit = waycli.Main(ctx, app, append(args, "--config", r.file, "--json", "--log-level", "error"), strings.NewReader(""), &out, &log)
	return exit, out.String(), log.String()
}

// command runs a command that must exit with a code.
func (r *replayer) command(want int, args ...string) (stdout string) {
	r.Helper()
	exit, stdout, stderr := r.run(r.Context(), args...)
	if exit != want {
		r.Fatalf("%v exits with %d, want %d\n%s", args, exit, want, stderr)
	}
	return stdout
}

// consume runs a worker until the function that it returns is called.
func (r *replayer) consume() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan string, 1)
	go func() {
		exit, _, log := r.run(ctx, "consume", "catalog_sync")
		ended <- fmt.Sprint(exit, waybillLog(log))
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if got := <-ended; got != "0" {
			r.Errorf("consume exits with %s", got)
		}
	})
	r.Cleanup(stop)
	return stop
}

// waybillLog returns a log without the failures that are part of the test.
func waybillLog(log string) string {
	var rest strings.Builder
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "moved to the dead letters") {
			rest.WriteString("\n" + line)
		}
	}
	return rest.String()
}

// await waits until nothing waits, and so many messages are dead letters.
func (r *replayer) await(want int) {
	r.Helper()
	var s struct {
		Queues []struct {
			Pending  int `json:"pending"`
			InFlight int `json:"in_flight"`
		} `json:"queues"`
		Retries []struct{ Retrying, Failed int } `json:"retries"`
	}
	text := ""
	for start := time.Now(); time.Since(start) < 2*time.Minute; time.Sleep(50 * time.Millisecond) {
		text = r.command(0, "stats")
		s.Queues, s.Retries = nil, nil
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			r.Fatal(err)
		}
		if len(s.Queues) == 0 && len(s.Retries) == 1 && s.Retries[0].Retrying == 0 && s.Retries[0].Failed == want {
			return
		}
	}
	r.Fatalf("not within 2 minutes: %d dead letters and nothing else. It has %s", want, text)
}

// Half of many dead letters can be handled after a fix: a replay of all of them handles
// these and leaves the others, each counted once. A replay that cannot help stops by itself.
func TestReplayOfManyEndsWithExactCounts(t *testing.T) {
	for name, database := range map[string]func(t *testing.T) string{
		"postgres": func(t *testing.T) string { return testserver.Postgres(t) },
		"sqlite":   func(t *testing.T) string { return "sqlite:///" + filepath.Join(t.TempDir(), "shop.db") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, n := newReplayer(t, database(t)), *letters
			from := filepath.Join(t.TempDir(), "messages.jsonl")
			var lines strings.Builder
			for i := range n {
				fmt.Fprintf(&lines, "{\"name\":\"product.availability\",\"body\":{\"sku\":\"s-%d\",\"n\":%d}}\n", i, i)
			}
			r.write(from, lines.String())
			r.command(0, "dispatch", "--from", from)
			defer r.consume()()
			r.await(n)

			r.mended.Store(true)
			r.failed.Store(0)
			began := time.Now()
			out := r.command(0, "failed", "retry", "--all", "--yes", "--rate", "2000/s")
			if want := fmt.Sprintf(`{"matching":%d,"retried":%d,"failed_again":0,"dry_run":false}`, n, n); strings.TrimSpace(out) != want {
				t.Errorf("failed retry: %s, want %s", out, want)
			}
			dispatched := time.Since(began)
			r.await(n / 2)
			t.Logf("%d dead letters: replayed in %v, handled or dead letters again after %v", n, dispatched.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
			if handled, failed := r.handled.Load(), r.failed.Load(); handled != int64(n/2) || failed != int64(n/2) {
				t.Errorf("%d handled and %d failed, want %d of each", handled, failed, n/2)
			}
			r.stopsByItself(n / 2)
		})
	}
}

// stopsByItself replays dead letters of which all fail again.
func (r *replayer) stopsByItself(left int) {
	r.Helper()
	const after = 10
	r.mended.Store(false)
	r.failed.Store(0)
	out := r.command(5, "failed", "retry", "--all", "--yes", "--rate", "40/s", "--stop-after-failures", fmt.Sprint(after))
	var got struct {
		Matching, Retried int
		FailedAgain       int `json:"failed_again"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		r.Fatal(err)
	}
	r.await(left)
	r.Logf("stopped after %d of %d, of which %d had failed again", got.Retried, got.Matching, got.FailedAgain)
	if got.Matching != left || got.FailedAgain < after || got.Retried >= left || int64(got.Retried) != r.failed.Load() {
		r.Errorf("%s after %d failures, want a stop after %d of %d", out, r.failed.Load(), after, left)
	}
}
