package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli"
)

// A site is a directory in which the programs of these tests run.
type site struct {
	t   *testing.T
	dir string
	env []string // of its commands, in addition
}

// newSite makes a directory with a configuration and its databases.
func newSite(t *testing.T, file string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(s.dir, "waybill.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run("schema", "up", "--database", "sqlite://./waybill.db")
	s.run("schema", "up", "--database", "sqlite://./broker.db")
	return s
}

// command returns a command of a program of TestMain.
func (s *site) command(program string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), self, args...)
	cmd.Args[0], cmd.Dir, cmd.Env = program, s.dir, slices.Concat(os.Environ(), []string{"GORACE=atexit_sleep_ms=0"}, s.env)
	return cmd
}

// run runs a command of the stock binary to its end.
func (s *site) run(args ...string) string {
	s.t.Helper()
	out, err := s.command("waybill", args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// A background is a command that runs on, with an admin listener.
type background struct {
	*exec.Cmd
	t   *testing.T
	url string

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (b *background) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

func (b *background) said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.String()
}

var listening = regexp.MustCompile(`"msg":"health and metrics","address":"([^"]+)"`)

// start starts a program, and waits for its listener.
func (s *site) start(program string, args ...string) *background {
	s.t.Helper()
	b := &background{t: s.t, Cmd: s.command(program, append(args, "--admin-listen", "127.0.0.1:0")...)}
	b.Stdout, b.Stderr = b, b
	if err := b.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = b.Process.Kill() })
	b.await("its listener", func() bool {
		m := listening.FindStringSubmatch(b.said())
		if m != nil {
			b.url = "http://" + m[1]
		}
		return m != nil
	})
	return b
}

// await waits up to 30 s for something.
func (b *background) await(what string, holds func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			b.t.Fatalf("waited for %s in vain:\n%s", what, b.said())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// get returns the answer to a request.
func (b *background) get(path string) (status int, text string) {
	b.t.Helper()
	res, err := http.Get(b.url + path)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.said())
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// answers waits until a page answers with a status and a text.
func (b *background) answers(path string, status int, text string) {
	b.t.Helper()
	got, said := 0, ""
	b.await(fmt.Sprintf("%s to answer %d %q", path, status, text), func() bool {
		got, said = b.get(path)
		return got == status && strings.Contains(said, text)
	})
}

// stop ends it by SIGTERM.
func (b *background) stop() {
	b.t.Helper()
	if err := b.Process.Signal(syscall.SIGTERM); err != nil {
		b.t.Fatal(err)
	}
	if err := b.Wait(); err != nil {
		b.t.Errorf("after SIGTERM: %v\n%s", err, b.said())
	}
}

const adminFile = `
database: sqlite://./waybill.db
transports:
  work: { dsn: queue://work }
  events: { dsn: "queue://events?database=sqlite%3A%2F%2F.%2Fbroker.db" }
outbox: { to: events }
messages: { order.placed: {} }
`

// A probe that has the process taken out of service, while it finishes, must not have it
// killed.
func TestProcessThatDrainsIsHealthyAndNotReady(t *testing.T) {
	t.Parallel()
	s := newSite(t, adminFile)
	s.run("dispatch", "order.placed", "{}", "--to", "work")
	b := s.start("waybill", "consume", "work", "--exec", "touch begun; while [ ! -e go ]; do sleep 0.02; done")
	b.answers("/readyz?verbose", 200, "database sqlite://./waybill.db: ok\nready\n")
	b.await("the handler", func() bool { _, err := os.Stat(filepath.Join(s.dir, "begun")); return err == nil })
	if out, err := s.command("waybill", "health", "--ready", "--url", b.url).CombinedOutput(); err != nil || string(out) != "database sqlite://./waybill.db: ok\nready\n" {
		t.Errorf("health --ready: %v, %q", err, out)
	}
	if err := b.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	b.answers("/readyz", 503, "draining\n")
	if status, text := b.get("/healthz"); status != 200 || text != "ok\n" {
		t.Errorf("/healthz of a process that drains is %d %q, want 200", status, text)
	}
	out, err := s.command("waybill", "health", "--ready", "--url", b.url, "--json").Output()
	if want := fmt.Sprintf(`{"url":"%s/readyz?verbose","ok":false,"status":503,"parts":["draining"]}`+"\n", b.url); string(out) != want || waitCode(err) != 1 {
		t.Errorf("health --ready --json exits with %d: %s, want 1 and %s", waitCode(err), out, want)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(); err != nil || !strings.Contains(b.said(), "stopped: 1 message handled") {
		t.Errorf("%v\n%s", err, b.said())
	}
	if err := s.command("waybill", "health", "--url", b.url).Run(); waitCode(err) != 1 {
		t.Errorf("health of a process that has ended exits with %d, want 1", waitCode(err))
	}
}

// waitCode returns the exit code in the error of a command.
func waitCode(err error) int {
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	return 0
}

func TestProcessWithoutItsBrokerIsHealthyAndNotReady(t *testing.T) {
	t.Parallel()
	at, err := url.Parse(testserver.RabbitMQ(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start(at.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	at.Host = proxy.Addr()
	file := "database: sqlite://./waybill.db\ntransports: { out: { dsn: \"" + at.String() + "?queue=work\" } }\nmessages: { order.placed: {} }\n"
	s := newSite(t, file)
	s.run("schema", "up", "--transports")
	proxy.Refuse(true)
	relay := s.start("waybill", "relay")
	relay.answers("/readyz?verbose", 503, "publish to out: ")
	if status, _ := relay.get("/healthz"); status != 200 {
		t.Errorf("/healthz of a relay without its broker is %d, want 200", status)
	}
	proxy.Refuse(false)
	relay.answers("/readyz", 200, "ready\n")
	consume := s.start("waybill", "consume", "out", "--exec", "true")
	consume.answers("/readyz?verbose", 200, "receive from out: ok")
	proxy.Refuse(true)
	proxy.Reset()
	relay.answers("/readyz?verbose", 503, "publish to out: ")
	consume.answers("/readyz?verbose", 503, "receive from out: ")
	proxy.Refuse(false)
	relay.answers("/readyz", 200, "ready\n")
	consume.answers("/readyz", 200, "ready\n")
	relay.stop()
	consume.stop()
	for _, b := range []*background{relay, consume} {
		if _, password := url.Parse(at.String()); password == nil && strings.Contains(b.said(), at.User.String()) {
			t.Errorf("the password of the broker is in the log:\n%s", b.said())
		}
	}
}

// stuckBroker never answers, whatever the deadline.
type stuckBroker struct{ outbox.Publisher }

func (stuckBroker) Traits() outbox.PublisherTraits                               { return outbox.PublisherTraits{} }
func (stuckBroker) Connect(context.Context) error                                { return nil }
func (b stuckBroker) Isolated() outbox.Publisher                                 { return b }
func (stuckBroker) Publish(context.Context, []outbox.Item, chan<- outbox.Result) { select {} }
func (stuckBroker) Close() error                                                 { return nil }

// runStuck is a program whose relay hangs at its first message.
func runStuck() int {
	program := app()
	program.Brokers = map[string]waycli.Broker{"amqp": {Publisher: func(waycli.BrokerTransport) (waycli.Publisher, error) { return stuckBroker{}, nil }}}
	return waycli.Main(context.Background(), program, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

func TestProcessWhoseLoopHangsIsNotHealthy(t *testing.T) {
	t.Parallel()
	s := newSite(t, "database: sqlite://./waybill.db\ntransports: { out: { dsn: \"amqp://localhost/?exchange=x\" } }\noutbox: { publish_deadline: 1s }\nmessages: { order.placed: {} }\n")
	b := s.start("stuck", "relay")
	b.answers("/healthz", 200, "ok\n")
	s.run("dispatch", "order.placed", "{}")
	b.answers("/healthz", 503, "outbox: a batch of the relay of out takes 1")
	if out, err := s.command("waybill", "health", "--url", b.url).CombinedOutput(); waitCode(err) != 1 || !strings.Contains(string(out), "a batch of the relay of out takes 1") {
		t.Errorf("health exits with %d and says %s", waitCode(err), out)
	}
}

// scraped returns the series of waybill, by name and labels in order of their names.
func (b *background) scraped() map[string]float64 {
	b.t.Helper()
	_, text := b.get("/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		b.t.Fatalf("/metrics: %v\n%s", err, text)
	}
	if families["go_goroutines"] == nil || families["process_resident_memory_bytes"] == nil {
		b.t.Errorf("/metrics has no figures of the Go runtime and the process:\n%s", text)
	}
	all := map[string]float64{}
	for name, family := range families {
		short, ours := strings.CutPrefix(name, "waybill_")
		for _, m := range family.GetMetric() {
			series := short
			for _, l := range m.GetLabel() {
				series += " " + l.GetValue()
			}
			if ours {
				all[series] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all
}

func TestMetricsOfProcessesAddUp(t *testing.T) {
	t.Parallel()
	s := newSite(t, adminFile)
	lines := strings.Repeat(`{"name":"order.placed","key":"`+canary+`","body":{"card":"`+canary+`"}}`+"\n", 7)
	if err := os.WriteFile(filepath.Join(s.dir, "seven.jsonl"), []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run("dispatch", "--from", "seven.jsonl")
	s.run("dispatch", "order.placed", "{}", "--delay", "1h")
	relay := s.start("waybill", "relay", "--pprof")
	has := func(b *background, want map[string]float64) {
		t.Helper()
		var got map[string]float64
		b.await(fmt.Sprint(want), func() bool {
			got = b.scraped()
			for series, n := range want {
				if got[series] != n {
					return false
				}
			}
			return true
		})
	}
	has(relay, map[string]float64{"relay_published_total published events": 7, "relay_publish_duration_seconds events": 7, "outbox_delayed events": 1, "database_up": 1})
	consume := s.start("waybill", "consume", "events", "--exec", `[ "$WAYBILL_ATTEMPT" -ge 2 ]`, "--concurrency", "1")
	has(consume, map[string]float64{
		"handler_duration_seconds order.placed failure events": 7, "handler_duration_seconds order.placed success events": 7, "retries_total order.placed events": 7, "database_up": 1,
	})
	for _, page := range []string{"/metrics", "/readyz?verbose", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1"} {
		for _, b := range []*background{relay, consume} {
			if _, text := b.get(page); strings.Contains(text, canary) {
				t.Errorf("a key or body is in %s:\n%s", page, text)
			}
		}
	}
	for page, want := range map[string][]int{"/debug/pprof/heap": {200, 404}, "/debug/pprof/cmdline": {404, 404}, "/nothing": {404, 404}} {
		first, _ := relay.get(page)
		second, _ := consume.get(page)
		if got := []int{first, second}; !slices.Equal(got, want) {
			t.Errorf("%s with --pprof and without is %v, want %v", page, got, want)
		}
	}
	relay.stop()
	consume.stop()
}
