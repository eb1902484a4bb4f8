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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waycli"
)

var letters = flag.Int("letters", 1000, "dead letters of TestReplayOfManyEndsWithExactCounts; the promise is for 10000")

// A replayer is a binary whose handler fails as fail says.
type replayer struct {
	*testing.T
	file            string
	fail            func(m availability) error
	handled, failed atomic.Int64
}

func newReplayer(t *testing.T, database string, fail func(m availability) error) *replayer {
	r := &replayer{T: t, file: filepath.Join(t.TempDir(), "waybill.yaml"), fail: fail}
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

func (r *replayer) bus(context.Context, *waycli.Service) (*waybill.Bus, error) {
	bus := waybill.NewBus("catalog")
	waybill.Handle(bus, "sync", func(_ context.Context, m availability) error {
		if err := r.fail(m); err != nil {
			r.failed.Add(1)
			return waybill.Unrecoverable(err)
		}
		r.handled.Add(1)
		return nil
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

// bury makes n messages dead letters, by a worker that runs until the function that it
// returns is called.
func (r *replayer) bury(n int) (stop func()) {
	r.Helper()
	from := filepath.Join(r.TempDir(), "messages.jsonl")
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "{\"name\":\"product.availability\",\"body\":{\"sku\":\"s-%d\",\"n\":%d}}\n", i, i)
	}
	r.write(from, lines.String())
	r.command(0, "dispatch", "--from", from)
	stop = r.consume()
	r.await(n)
	return stop
}

// withGroups are the databases that have admin.DeadLetters.
var withGroups = map[string]func(t *testing.T) string{
	"postgres": func(t *testing.T) string { return testserver.Postgres(t) },
	"sqlite":   func(t *testing.T) string { return "sqlite:///" + filepath.Join(t.TempDir(), "shop.db") },
}

// Half of many dead letters can be handled after a fix: a replay of all of them handles
// these and leaves the others, each counted once. A replay that cannot help stops by itself.
func TestReplayOfManyEndsWithExactCounts(t *testing.T) {
	for name, database := range withGroups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mended atomic.Bool
			n := *letters
			r := newReplayer(t, database(t), func(m availability) error {
				if mended.Load() && m.N%2 == 0 {
					return nil
				}
				return errors.New("no price")
			})
			defer r.bury(n)()

			mended.Store(true)
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
			mended.Store(false)
			r.stopsByItself(n / 2)
		})
	}
}

// stopsByItself replays dead letters of which all fail again.
func (r *replayer) stopsByItself(left int) {
	r.Helper()
	const after = 10
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

// Errors that differ in ids and times only are one line of failed groups, which retry and
// list select.
func TestErrorsOfThreeKindsAreThreeGroups(t *testing.T) {
	for name, database := range withGroups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplayer(t, database(t), func(m availability) error {
				id, at := uuid.Must(uuid.NewV4()), time.Now()
				switch m.N % 3 {
				case 0:
					return fmt.Errorf("%s: SKU %s of order %s not found", at.Format(time.RFC3339Nano), m.SKU, id)
				case 1:
					return fmt.Errorf("POST /stock/%d: 503, try again after %v, at %s", m.N, time.Duration(m.N)*7*time.Millisecond, at.Format(time.RFC1123))
				}
				return fmt.Errorf("lock of %s: %w", id, context.DeadlineExceeded)
			})
			defer r.bury(1000)()
			var got struct {
				Groups []struct {
					Fingerprint string `json:"fingerprint"`
					Messages    int    `json:"messages"`
				} `json:"groups"`
			}
			text := r.command(0, "failed", "groups")
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			var sizes []int
			for _, g := range got.Groups {
				sizes = append(sizes, g.Messages)
				want := fmt.Sprintf(`{"matching":%d,"retried":0,"failed_again":0,"dry_run":true}`, g.Messages)
				if out := r.command(0, "failed", "retry", "--fingerprint", g.Fingerprint, "--dry-run"); strings.TrimSpace(out) != want {
					t.Errorf("failed retry --fingerprint: %s, want %s", out, want)
				}
			}
			if want := []int{334, 333, 333}; !slices.Equal(sizes, want) {
				t.Errorf("groups of %v messages, want %v:\n%s", sizes, want, text)
			}
		})
	}
}
