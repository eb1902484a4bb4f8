package recovery

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/faultproxy"
	"github.com/waybill-go/waybill/internal/testserver"
	"github.com/waybill-go/waybill/wayamqp"
)

var long = flag.Bool("long", false, "the whole campaign, as `make recover` runs it")

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	os.Exit(m.Run())
}

// plan is how much is injected.
type plan struct {
	kills      int // of each server
	resets     int
	holes      int // when nothing passes
	hole       time.Duration
	within     time.Duration // a delivery must come after each restart
	pace       time.Duration // of one dispatcher
	perSecond  float64       // messages, at least, while all is well
	quiet      time.Duration // between two faults
	duplicates int
}

func TestProcessesRecoverFromEveryFault(t *testing.T) {
	p := plan{kills: 1, resets: 4, holes: 1, hole: 4 * time.Second, within: 20 * time.Second, pace: 50 * time.Millisecond, quiet: 2 * time.Second, duplicates: 0}
	if *long {
		p = plan{kills: 3, resets: 20, holes: 3, hole: 15 * time.Second, within: 10 * time.Second, pace: 12 * time.Millisecond, perSecond: 500, quiet: 4 * time.Second, duplicates: 1}
	}
	binary := filepath.Join(t.TempDir(), "waybill")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/waybill").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, on := range kinds {
		t.Run(on.name, func(t *testing.T) {
			if !*long {
				t.Parallel() // it measures next to nothing
			}
			p.run(t, on, binary)
		})
	}
}

func (p plan) run(t *testing.T, on kind, binary string) {
	c := newCampaign(t, on, binary)
	c.launch(p.pace)
	c.awaitDelivery(20 * time.Second)
	calm := c.count("committed")
	start := time.Now()
	time.Sleep(p.quiet)
	rate := float64(c.count("committed")-calm) / time.Since(start).Seconds()
	for i := range max(p.kills, p.holes) {
		if i < p.kills {
			c.restart(on.name, c.server, p)
			c.restart("rabbitmq", c.rabbit, p)
		}
		for range p.resets / max(p.kills, p.holes) / 2 {
			c.report.Resets += c.toServer.Reset()
			time.Sleep(p.quiet / 8)
			c.report.Resets += c.toRabbit.Reset()
			time.Sleep(p.quiet / 8)
		}
		if i < p.holes {
			c.hole([]*faultproxy.Proxy{c.toRabbit, c.toServer}[i%2], p)
		}
	}
	time.Sleep(p.quiet)
	c.finish()
	c.report.Rate = rate
	c.judge()
	text, err := json.Marshal(c.report)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
	r := c.report
	if r.Committed == 0 || r.Lost+r.Phantoms+r.DuplicateEffects+r.OrderViolations != 0 || r.Committed != r.Handled {
		t.Errorf("committed %d, handled %d, lost %d, phantoms %d, duplicate effects %d, order violations %d: want all handled, once, in order", r.Committed, r.Handled, r.Lost, r.Phantoms, r.DuplicateEffects, r.OrderViolations)
	}
	if r.Kills != 2*p.kills || r.Resets < p.resets || r.Holes != p.holes {
		t.Errorf("injected %d kills, %d resets, %d holes: too few to prove anything", r.Kills, r.Resets, r.Holes)
	}
	if r.Suppressed < p.duplicates {
		t.Errorf("%d duplicates were suppressed: the faults hit nothing", r.Suppressed)
	}
	if r.SlowestRecovery > p.within.Seconds() {
		t.Errorf("the first delivery after a restart took %.1f s, want at most %v", r.SlowestRecovery, p.within)
	}
	if rate < p.perSecond {
		t.Errorf("%.0f messages a second before the faults, want at least %.0f", rate, p.perSecond)
	}
}

// report is what the campaign prints.
type report struct {
	Committed        int     `json:"committed"`
	Handled          int     `json:"handled"`
	Lost             int     `json:"lost"`
	Phantoms         int     `json:"phantoms"`
	DuplicateEffects int     `json:"duplicate_effects"`
	OrderViolations  int     `json:"order_violations"`
	Suppressed       int     `json:"duplicates_suppressed"`
	Kills            int     `json:"server_kills"`
	Resets           int     `json:"connection_resets"`
	Holes            int     `json:"black_holes"`
	SlowestRecovery  float64 `json:"slowest_recovery_seconds"` // after a restart
	SecondsToDrain   float64 `json:"seconds_to_drain"`
	Rate             float64 `json:"rate"` // messages a second before the faults
}

type campaign struct {
	t                  *testing.T
	on                 kind
	binary             string
	server, rabbit     *testserver.Server
	toServer, toRabbit *faultproxy.Proxy
	dir                string
	processes          map[string]*exec.Cmd
	report             report
}

func newCampaign(t *testing.T, on kind, binary string) *campaign {
	t.Helper()
	c := &campaign{t: t, on: on, binary: binary, dir: t.TempDir(), processes: map[string]*exec.Cmd{}}
	c.server = on.start(t, nil)
	c.rabbit = testserver.StartRabbitMQ(t, nil)
	c.toServer, c.toRabbit = c.proxy(c.server.URL()), c.proxy(c.rabbit.URL())
	db, err := open(t.Context(), c.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	look := c.look()
	defer func() { _ = look.Close() }()
	for _, statement := range tables(on.serial) {
		if _, err := look.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	_, err = wayamqp.Declare(t.Context(), wayamqp.Config{URL: c.rabbit.URL(), Exchange: transport, ExchangeType: "topic", Queue: transport,
		SingleActiveConsumer: true, Bindings: []wayamqp.Binding{{Exchange: transport, Key: "#"}}})
	if err != nil {
		t.Fatal(err)
	}
	c.rabbit.Settle()
	return c
}

func (c *campaign) proxy(address string) *faultproxy.Proxy {
	c.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		c.t.Fatal(err)
	}
	p, err := faultproxy.Start(u.Host)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(p.Close)
	return p
}

// through returns address with the proxy's in its place.
func through(address string, p *faultproxy.Proxy) string {
	u, _ := url.Parse(address) // it was parsed before
	u.Host = p.Addr()
	return u.String()
}

// launch starts two relays, two workers and the dispatchers, each a process.
func (c *campaign) launch(pace time.Duration) {
	c.t.Helper()
	database, broker := through(c.server.URL(), c.toServer), through(c.rabbit.URL(), c.toRabbit)
	file := filepath.Join(c.dir, "waybill.yaml")
	yaml := fmt.Sprintf("database: %q\ntransports:\n  %s: { dsn: \"%s?exchange=%s&type=topic&key_header=true\" }\n", database, transport, broker, transport)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		c.t.Fatal(err)
	}
	env := append(os.Environ(), databaseEnv+"="+database, brokerEnv+"="+broker+"|"+transport, paceEnv+"="+pace.String())
	for _, name := range []string{"relay-1", "relay-2"} {
		c.start(name, exec.Command(c.binary, "relay", "--config", file), os.Environ())
	}
	for _, name := range []string{"work-1", "work-2", "dispatch-1"} {
		role, _, _ := strings.Cut(name, "-")
		c.start(name, exec.Command(os.Args[0]), append(env, roleEnv+"="+role))
	}
}

func (c *campaign) start(name string, cmd *exec.Cmd, env []string) {
	c.t.Helper()
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, env
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.processes[name] = cmd
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if c.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			c.t.Logf("%s:\n%s", name, text[max(0, len(text)-2500):])
		}
	})
}

// look opens the database directly.
func (c *campaign) look() *sql.DB {
	c.t.Helper()
	db, err := c.on.look(c.server.URL())
	if err != nil {
		c.t.Fatal(err)
	}
	return db
}

// count counts the rows of a table, over a connection of its own.
func (c *campaign) count(table string) int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	db := c.look()
	defer func() { _ = db.Close() }()
	var n int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// awaitDelivery waits until something more was handled, and says how long that
// took.
func (c *campaign) awaitDelivery(limit time.Duration) time.Duration {
	c.t.Helper()
	start, before := time.Now(), c.count("handled")
	for c.count("handled") == before {
		if time.Since(start) > limit {
			c.t.Fatalf("nothing was delivered for %v", limit)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(start)
}

// restart kills a server, starts it again and waits for the next delivery.
func (c *campaign) restart(name string, s *testserver.Server, p plan) {
	c.t.Helper()
	s.Kill()
	c.report.Kills++
	time.Sleep(500 * time.Millisecond)
	s.Start()
	took := c.awaitDelivery(3 * p.within)
	c.t.Logf("%s killed and started: next delivery after %v", name, took.Round(time.Millisecond))
	c.report.SlowestRecovery = max(c.report.SlowestRecovery, took.Seconds())
	time.Sleep(p.quiet)
}

func (c *campaign) hole(proxy *faultproxy.Proxy, p plan) {
	c.t.Helper()
	proxy.BlackHole(true)
	time.Sleep(p.hole)
	proxy.BlackHole(false)
	c.report.Holes++
	took := c.awaitDelivery(60 * time.Second)
	c.t.Logf("a hole of %v: next delivery after %v", p.hole, took.Round(time.Millisecond))
	time.Sleep(p.quiet)
}

// finish stops the dispatchers and waits until everything has arrived. Every
// process must still be the one that was started.
func (c *campaign) finish() {
	c.t.Helper()
	for name, cmd := range c.processes {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil || exited(cmd.Process.Pid) {
			c.t.Errorf("%s (pid %d) has ended: %v", name, cmd.Process.Pid, err)
		}
	}
	c.stop("dispatch-1")
	start := time.Now()
	for c.count("handled") < c.count("committed") {
		if time.Since(start) > 2*time.Minute {
			c.t.Errorf("not everything was handled within two minutes")
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.report.SecondsToDrain = time.Since(start).Seconds()
	for _, name := range []string{"relay-1", "relay-2", "work-1", "work-2"} {
		c.stop(name)
	}
}

// stop ends a process in an orderly way.
func (c *campaign) stop(name string) {
	c.t.Helper()
	cmd := c.processes[name]
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Fatalf("%s: %v", name, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			c.t.Errorf("%s: %v, want an orderly stop", name, err)
		}
	case <-time.After(40 * time.Second):
		c.t.Errorf("%s does not stop", name)
		_ = cmd.Process.Kill()
		<-done
	}
}

// exited reports whether a child has ended and was not waited for.
func exited(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.Contains(text, []byte(") Z "))
}

// judge compares the two tables.
func (c *campaign) judge() {
	c.t.Helper()
	committed, handled := c.rows("committed"), c.rows("handled")
	c.report.Committed, c.report.Suppressed = len(committed), c.count("suppressed")
	want := make(map[string]bool, len(committed))
	for _, r := range committed {
		want[r.id] = true
	}
	times := map[string]int{}
	latest := map[string]int{}
	for _, r := range handled {
		if times[r.id]++; times[r.id] > 1 {
			c.report.DuplicateEffects++
			continue
		}
		if !want[r.id] {
			c.report.Phantoms++
			continue
		}
		c.report.Handled++
		if r.n != latest[r.key]+1 {
			c.report.OrderViolations++
		}
		latest[r.key] = r.n
	}
	c.report.Lost = len(committed) - c.report.Handled
}

type row struct {
	key string
	n   int
	id  string
}

func (c *campaign) rows(table string) []row {
	c.t.Helper()
	db := c.look()
	defer func() { _ = db.Close() }()
	found, err := db.QueryContext(c.t.Context(), "SELECT k, n, message_id FROM "+table+" ORDER BY i")
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = found.Close() }()
	var all []row
	for found.Next() {
		var one row
		if err := found.Scan(&one.key, &one.n, &one.id); err != nil {
			c.t.Fatal(err)
		}
		all = append(all, one)
	}
	if err := found.Err(); err != nil {
		c.t.Fatal(err)
	}
	return all
}
