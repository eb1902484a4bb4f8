//go:build chaos

package chaos

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/internal/test/crashpoint"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/wayamqp"
)

var (
	long     = flag.Bool("long", false, "the whole campaign, as `make chaos` runs it")
	faultsIn = flag.Duration("for", 0, "how long there are faults; zero means one round, or 5 minutes with -long")
	seedFlag = flag.Uint64("seed", 0, "of the schedule; zero means another one each time")
	only     = flag.String("on", "", "the database: postgres or mariadb; empty means both")
	dir      = flag.String("dir", "", "where the processes write their logs, and leave them; empty means a temporary directory")
	asJSON   = flag.Bool("json", false, "print each report as a line of JSON")
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		crashpoint.Arm()
		os.Exit(play(role))
	}
	os.Exit(m.Run())
}

// plan is the size of a campaign.
type plan struct {
	few, relays, dispatchers, workers, keys int

	calm     time.Duration // without a fault, while relays come and go
	faults   time.Duration // at least one round
	pause    time.Duration // between two faults
	pace     time.Duration // of one dispatcher
	takeover time.Duration // of the keys of a relay that was killed
	measures bool          // takeovers: there must be some of each kind
	recovery time.Duration // from the start of a server to the next effect
}

// The limits of the short form are for machines that are busy.
var (
	shortPlan = plan{few: 1, relays: 3, dispatchers: 6, workers: 2, keys: 40, calm: 3 * time.Second, pause: 200 * time.Millisecond, pace: 40 * time.Millisecond,
		takeover: 10 * time.Second, recovery: 30 * time.Second}
	longPlan = plan{few: 2, relays: 10, dispatchers: 40, workers: 3, keys: 200, calm: time.Minute, faults: 5 * time.Minute, pause: time.Second, pace: 300 * time.Millisecond,
		takeover: time.Second, measures: true, recovery: 10 * time.Second}
)

func TestProcessesRecoverFromEveryFault(t *testing.T) {
	p := shortPlan
	if *long {
		p = longPlan
	}
	if *faultsIn > 0 {
		p.faults, p.calm = *faultsIn, min(p.calm, *faultsIn/5)
	}
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64N(1_000_000)
	}
	for _, on := range kinds {
		if *only != "" && *only != on.name {
			continue
		}
		t.Run(on.name, func(t *testing.T) {
			if !*long {
				t.Parallel() // it measures next to nothing
			}
			c := newCampaign(t, on, p, seed)
			r := c.run()
			if *asJSON {
				text, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Println(string(text))
			}
			t.Logf("\n%s", r)
			for _, failure := range r.failures(p) {
				t.Errorf("%s (-args -seed %d -on %s)", failure, seed, on.name)
			}
		})
	}
}

type campaign struct {
	t      *testing.T
	start  time.Time
	on     kind
	plan   plan
	seed   uint64
	dice   *rand.Rand
	keys   []string
	db     *sql.DB // for looks from outside
	server *testserver.Server
	rabbit *testserver.Server

	toServer, toRabbit *faultproxy.Proxy
	fleet              *fleet
	faults             map[string]int
	wanted             map[string]int // crashes, by point
	frozen             *sync.WaitGroup
	slowest            time.Duration // recovery of a server
	stored             bool          // the database keeps what failed, and some handlers fail
}

// audit is the queue that receives every published message and has no consumer.
const audit = "audit"

func newCampaign(t *testing.T, on kind, p plan, seed uint64) *campaign {
	t.Helper()
	c := &campaign{t: t, start: time.Now(), on: on, plan: p, seed: seed, dice: rand.New(rand.NewPCG(seed, 0)), keys: keyNames(p.keys), faults: map[string]int{}, wanted: map[string]int{}}
	c.server = on.start(t, map[string]string{"max_connections": "500"})
	c.rabbit = testserver.StartRabbitMQ(t, nil)
	c.toServer, c.toRabbit = c.proxy(c.server.URL()), c.proxy(c.rabbit.URL())
	db, err := on.open(t.Context(), c.server.URL(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = db.RetryQueue(transport)
	c.stored = err == nil
	if c.db, err = on.look(c.server.URL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.db.Close() })
	for _, statement := range tables(on.serial, c.keys) {
		if _, err := c.db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, queue := range []string{transport, audit} {
		_, err = wayamqp.Declare(t.Context(), wayamqp.Config{URL: c.rabbit.URL(), Exchange: transport, ExchangeType: "topic", Queue: queue,
			SingleActiveConsumer: queue == transport, Bindings: []wayamqp.Binding{{Exchange: transport, Key: "#"}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	c.rabbit.Settle()
	notes := t.TempDir()
	if *dir != "" {
		notes = filepath.Join(*dir, on.name)
		if err := os.MkdirAll(notes, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.fleet = &fleet{t: t, crashed: map[string]int{}, role: role{
		Kind: on.name, Database: through(c.server.URL(), c.toServer), Broker: through(c.rabbit.URL(), c.toRabbit), Dir: notes, Keys: p.keys, Pace: p.pace, Seed: seed, Store: c.stored,
	}}
	t.Cleanup(c.fleet.end)
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

func (c *campaign) run() *report {
	c.t.Helper()
	r := &report{Database: c.on.name, Seed: c.seed, Stored: c.stored}
	start := time.Now()
	c.say("the servers are there")
	c.fleet.add("dispatch", c.plan.dispatchers, false)
	c.fleet.add("worker", c.plan.workers, true)
	c.calm()
	calmUntil := time.Now()
	c.quicken()
	c.say("here the faults begin")
	for first := true; !c.t.Failed() && (first || time.Since(calmUntil) < c.plan.faults); first = false {
		c.round()
	}
	c.say("here the faults end")
	c.fleet.dismiss(c.fleet.of("dispatch")...)
	c.say("the dispatchers have ended")
	r.Rate = float64(c.count("committed")) / time.Since(start).Seconds()
	r.SecondsToDrain = c.drain().Seconds()
	c.say("everything is handled")
	if c.stored {
		c.replay(r)
		c.say("the dead letters are replayed")
	}
	c.fleet.dismiss(append(c.fleet.of("relay"), c.fleet.of("worker")...)...)
	c.say("all processes have ended")

	e := &evidence{
		outcomes: c.journals(), committed: c.rows("committed", "0"), handled: c.rows("handled", "at"), arrived: c.arrivals(),
		suppressed: c.count("suppressed"), losses: c.fleet.losses, calmUntil: calmUntil.UnixMicro(),
	}
	r.judge(e)
	r.CrashPoints, r.Faults = c.fleet.crashes(), c.faults
	r.DuplicatesBound, r.SlowestRecovery = c.bound(), c.slowest.Seconds()
	return r
}

// calm starts and stops relays under load: few, many, few, then new ones. All run
// with production defaults.
func (c *campaign) calm() {
	c.t.Helper()
	c.fleet.add("relay", c.plan.few, false)
	c.awaitEffect()
	time.Sleep(c.plan.calm / 3)
	c.fleet.add("relay", c.plan.relays-c.plan.few, false)
	c.awaitEffect()
	time.Sleep(c.plan.calm / 3)
	many := c.fleet.of("relay")
	c.fleet.dismiss(many[min(c.plan.few, len(many)):]...)
	time.Sleep(c.plan.calm / 3)
	c.fleet.dismiss(c.fleet.of("relay")...)
	c.fleet.add("relay", c.plan.few, false)
	// The new relays republish messages that the stopped ones left unsettled.
	committed := c.count(c.handleable())
	c.await("the effects of committed messages", 5*time.Minute, func() bool { return c.count("handled") >= committed })
}

// quicken replaces the relays by quick ones, with a publish deadline of one second.
// On a busy machine a missed deadline is itself a fault.
func (c *campaign) quicken() {
	c.t.Helper()
	c.fleet.dismiss(c.fleet.of("relay")...)
	c.fleet.add("relay", c.plan.relays, true)
	c.awaitEffect()
}

// bound is how many duplicates the faults explain: each relay that is lost, or
// that loses a server, may have all its batches published and not settled.
func (c *campaign) bound() int {
	n := 0
	for _, f := range processFaults {
		if strings.Contains(f.name, "relay") {
			n += c.faults[f.name]
		}
	}
	for point, times := range c.fleet.crashes() {
		if strings.HasPrefix(point, "relay") {
			n += times + c.faults[point] // it was killed to be armed
		}
	}
	for _, f := range serverFaults {
		n += c.faults[f.name] * c.plan.relays
	}
	return n * batches * batch
}

// say logs an event with its time.
func (c *campaign) say(what string) {
	c.t.Helper()
	c.t.Logf("%6.2f s: %s", time.Since(c.start).Seconds(), what)
}

func (c *campaign) await(what string, limit time.Duration, done func() bool) {
	c.t.Helper()
	for start := time.Now(); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > limit {
			c.t.Errorf("waited %v for this: %s (-args -seed %d -on %s)", limit, what, c.seed, c.on.name)
			return // the verdict says more
		}
	}
}

// awaitEffect waits until something more was handled.
func (c *campaign) awaitEffect() {
	c.t.Helper()
	before := c.count("handled")
	c.await("an effect", time.Minute, func() bool { return c.count("handled") > before })
}

// drain waits until every message was handled, or no more are for a while, and
// returns the time that took.
func (c *campaign) drain() time.Duration {
	c.t.Helper()
	start, committed := time.Now(), c.count(c.handleable())
	handled, last := 0, start
	for {
		now := c.count("handled")
		if now > handled {
			handled, last = now, time.Now()
		}
		if handled >= committed && c.pending() == 0 || time.Since(last) > 40*time.Second || time.Since(start) > 5*time.Minute {
			return last.Sub(start)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// pending counts the messages in the outbox: the ids of sentinel rows are below 1.
func (c *campaign) pending() int { return c.count("waybill_outbox WHERE id > 0") }

// count counts rows. It retries, because a fault of the server breaks its
// connection, too.
func (c *campaign) count(from string) (n int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	for {
		err := c.db.QueryRowContext(ctx, "SELECT count(*) FROM "+from).Scan(&n)
		if err == nil {
			return n
		}
		if ctx.Err() != nil {
			c.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *campaign) rows(table, at string) (all []message) {
	c.t.Helper()
	found, err := c.db.QueryContext(c.t.Context(), "SELECT k, n, message_id, attempt, "+at+" FROM "+table+" ORDER BY i")
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = found.Close() }()
	for found.Next() {
		var m message
		if err := found.Scan(&m.Key, &m.N, &m.id, &m.Attempt, &m.at); err != nil {
			c.t.Fatal(err)
		}
		all = append(all, m)
	}
	if err := found.Err(); err != nil {
		c.t.Fatal(err)
	}
	return all
}

// arrivals takes all that came to the broker, in its order.
func (c *campaign) arrivals() []message {
	c.t.Helper()
	conn, err := amqp.Dial(c.rabbit.URL())
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		c.t.Fatal(err)
	}
	queue, err := ch.QueueDeclarePassive(audit, true, false, false, false, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	deliveries, err := ch.Consume(audit, "", true, false, false, false, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	all := make([]message, 0, queue.Messages)
	for len(all) < queue.Messages {
		select {
		case d, ok := <-deliveries:
			if !ok {
				c.t.Fatalf("%d of %d messages could be read", len(all), queue.Messages)
			}
			m := message{id: d.MessageId}
			if err := json.Unmarshal(d.Body, &m.counted); err != nil {
				c.t.Fatal(err)
			}
			m.relay, _ = d.Headers[relayHeader].(string)
			sent, _ := d.Headers[sentHeader].(string)
			m.at, _ = strconv.ParseInt(sent, 10, 64)
			all = append(all, m)
		case <-time.After(30 * time.Second):
			c.t.Fatalf("%d of %d messages could be read", len(all), queue.Messages)
		}
	}
	return all
}

// journals reads the journals of the dispatchers. The last line of a killed one may
// be torn.
func (c *campaign) journals() map[string]entry {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(c.fleet.role.Dir, "*"+journalEnd))
	if err != nil {
		c.t.Fatal(err)
	}
	all := map[string]entry{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			c.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) == 3 && strings.HasSuffix(line, "\n") {
				at, _ := strconv.ParseInt(fields[2], 10, 64)
				all[fields[1]] = entry{fields[0], at}
			}
		}
	}
	return all
}
