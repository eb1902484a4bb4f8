package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

var long = flag.Bool("long", false, "strike as often as the full form of each test does")

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(play(role))
	}
	flag.Parse()
	// Most of these tests wait most of their time.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	transport = "events" // also the exchange
	everyone  = "all"    // a queue that gets all that is published to it
)

// patientRelay has a publish deadline and a heartbeat for production: nothing
// comes twice on a machine that is only slow.
var patientRelay = outbox.RelayConfig{Transport: transport, Retry: quickRelay.Retry}

// quick are settings under which a frozen relay is replaced in six seconds.
const quickIdle = 6 * time.Second

var quickRelay = outbox.RelayConfig{Transport: transport, PublishDeadline: time.Second, Retry: waybill.Backoff{Delay: 200 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}}

// patience is how long anything may take that takes a moment on an idle machine.
// With a planted bug much never happens.
var patience = func() time.Duration {
	if os.Getenv("WAYBILL_MUTANT") != "" {
		return 8 * time.Second
	}
	return time.Minute
}()

const quickHeartbeat, patientHeartbeat = time.Second, 5 * time.Second

// counted is the N-th message of its key.
type counted struct {
	Key string
	N   int
	Pad string `json:",omitempty"`
}

func (counted) MessageName() string    { return "key.counted" }
func (m counted) PartitionKey() string { return m.Key }

// A stack is a database with an outbox, and a broker with an exchange whose
// messages all go to one queue.
type stack struct {
	testing.TB
	on               *kind
	database, broker string // direct
	db               database
	app              application
	out              *outbox.Outbox[pgx.Tx] // the same on PostgreSQL, and nil elsewhere
	types            *waybill.Types         // names that may be dispatched
	ch               *amqp.Channel          // to look into the broker
	pad              string                 // part of every body
	mayWrite         func(exchanges string) // limits the exchanges that this stack may write to
}

func (on *kind) stack(tb testing.TB) *stack {
	tb.Helper()
	return on.stackAt(tb, on.fresh(tb), testserver.RabbitMQ(tb))
}

func (on *kind) stackAt(tb testing.TB, database, broker string) *stack {
	tb.Helper()
	s := &stack{TB: tb, on: on, database: database, broker: broker, types: waybill.NewTypes()}
	s.db = s.open(database)
	_, err := s.db.SchemaUp(tb.Context())
	s.must(err)
	for _, statement := range []string{
		"CREATE TABLE counts (k varchar(255) PRIMARY KEY, n int NOT NULL)",
		"CREATE TABLE sent (k varchar(255) NOT NULL, n int NOT NULL, name varchar(190) NOT NULL, message_id char(36) NOT NULL)",
		// Without a unique index on purpose: a second effect must be visible.
		"CREATE TABLE effects (seq serial, k varchar(255) NOT NULL, n int NOT NULL, message_id char(36) NOT NULL)",
	} {
		s.exec(statement)
	}
	cfg := outbox.Config{To: transport, Serializer: waybill.Serializer{Types: s.types}}
	s.app, err = s.db.application(cfg)
	s.must(err)
	if db, ok := s.db.(postgreSQL); ok {
		s.out, err = outbox.New(db.DB, cfg)
		s.must(err)
	}
	s.look()
	s.must(s.ch.ExchangeDeclare(transport, "topic", true, false, false, false, nil))
	s.queue(everyone)
	s.must(s.ch.QueueBind(everyone, "#", transport, false, nil))
	return s
}

func (s *stack) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// look connects to the broker.
func (s *stack) look() {
	s.Helper()
	conn, err := amqp.Dial(s.broker)
	s.must(err)
	s.Cleanup(func() { _ = conn.Close() })
	s.ch, err = conn.Channel()
	s.must(err)
}

func (s *stack) queue(name string) {
	s.Helper()
	_, err := s.ch.QueueDeclare(name, true, false, false, false, nil)
	s.must(err)
}

// open connects to the database as another process would: no DB knows the state
// that another one has cached.
func (s *stack) open(address string) database {
	s.Helper()
	return s.openWith(address, quickIdle)
}

func (s *stack) openWith(address string, idle time.Duration) database {
	s.Helper()
	db, err := s.on.open(s.Context(), address, opening{idle: idle})
	s.must(err)
	s.Cleanup(func() { _ = db.Close() })
	return db
}

func (s *stack) exec(statement string, args ...any) {
	s.Helper()
	pool, statement := s.db.look(statement)
	_, err := pool.ExecContext(s.Context(), statement, args...)
	s.must(err)
}

// count returns the one number that a query answers.
func (s *stack) count(query string, args ...any) (n int) {
	s.Helper()
	s.must(s.one(query, &n, args...))
	return n
}

// one scans the one value that a query answers.
func (s *stack) one(query string, value any, args ...any) error {
	pool, query := s.db.look(query)
	return pool.QueryRowContext(s.Context(), query, args...).Scan(value)
}

func (s *stack) left() int {
	s.Helper()
	return s.count("SELECT count(*) FROM waybill_outbox WHERE id > 0")
}

// keyNames returns n keys that begin with prefix.
func keyNames(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return keys
}

// dispatch is tryDispatch that must not fail.
func (s *stack) dispatch(keys []string, each int, names ...string) {
	s.Helper()
	s.must(s.tryDispatch(s.Context(), keys, each, names...))
}

// tryDispatch dispatches, in one unit of work, the next messages of all keys,
// each so many, with the names in turn; without names it is key.counted. The
// table sent holds the committed messages. The keys are locked first, so that
// their numbers are in commit order.
func (s *stack) tryDispatch(ctx context.Context, keys []string, each int, names ...string) error {
	if len(names) == 0 {
		names = []string{counted{}.MessageName()}
	}
	s.types.AllowRaw(names...)
	return s.app.inTx(ctx, func(ctx context.Context, u unit) error { return s.write(ctx, u, keys, each, names) })
}

// write does the work of tryDispatch in any transaction.
func (s *stack) write(ctx context.Context, u unit, keys []string, each int, names []string) error {
	last, err := u.next(ctx, keys, each)
	if err != nil {
		return err
	}
	var sent []any
	for i := range each {
		for _, key := range slices.Sorted(maps.Keys(last)) {
			n := last[key] - each + 1 + i
			name := names[n%len(names)]
			body, err := json.Marshal(counted{key, n, s.pad})
			if err != nil {
				return err
			}
			id, err := u.dispatch(ctx, waybill.RawMessage{Name: name, Key: key, Body: body})
			if err != nil {
				return err
			}
			sent = append(sent, key, n, name, id.String())
		}
	}
	return u.exec(ctx, "INSERT INTO sent (k, n, name, message_id) VALUES (?, ?, ?, ?)"+strings.Repeat(", (?, ?, ?, ?)", len(sent)/4-1), sent...)
}

// keepDispatching dispatches from several goroutines until the function that it
// returns is called, which waits for them. Errors of a transaction are counted
// and no more: the table sent holds the committed messages.
func (s *stack) keepDispatching(goroutines int, pause time.Duration, keys []string) (stop func() (failed int)) {
	ctx, cancel := context.WithCancel(s.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for g := range goroutines {
		wg.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for i := g; ; i += goroutines {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				one, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				if s.tryDispatch(one, keys[i%len(keys):][:1], 1) != nil {
					mu.Lock()
					failed++
					mu.Unlock()
				}
				done()
			}
		})
	}
	var once sync.Once
	stop = func() int {
		once.Do(func() { cancel(); wg.Wait() })
		return failed
	}
	s.Cleanup(func() { stop() })
	return stop
}

// publisher connects to the broker at address, direct when it is empty.
func (s *stack) publisher(cfg wayamqp.Config) *wayamqp.Publisher {
	s.Helper()
	if cfg.URL == "" {
		cfg.URL = s.broker
	}
	cfg.Exchange, cfg.KeyHeader, cfg.Heartbeat = transport, true, cmp.Or(cfg.Heartbeat, quickHeartbeat)
	p, err := wayamqp.NewPublisher(cfg)
	s.must(err)
	s.Cleanup(func() { _ = p.Close() })
	return p
}

// A relay that runs.
type running struct {
	tb   testing.TB
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// relay runs a relay until the test or Stop ends it.
func (s *stack) relay(store outbox.Store, to outbox.Publisher, cfg outbox.RelayConfig) *running {
	s.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(testLog{s}, nil))
	}
	r, err := outbox.NewRelay(store, to, cfg)
	s.must(err)
	ctx, stop := context.WithCancel(context.Background())
	run := &running{tb: s, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(run.done)
		run.err = r.Run(ctx)
	}()
	s.Cleanup(func() { run.end() })
	return run
}

// quickRelay runs a relay that goes straight to both servers.
func (s *stack) quickRelay() *running {
	s.Helper()
	return s.relay(s.open(s.database), s.publisher(wayamqp.Config{}), quickRelay)
}

// testLog writes a relay's log to the test's.
type testLog struct{ tb testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.tb.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// patientRelay runs a relay with settings for production.
func (s *stack) patientRelay() *running {
	s.Helper()
	return s.relay(s.openWith(s.database, 0), s.publisher(wayamqp.Config{Heartbeat: patientHeartbeat}), patientRelay)
}

// end stops the relay and returns how long that took.
func (r *running) end() time.Duration {
	r.tb.Helper()
	start := time.Now()
	r.stop()
	select {
	case <-r.done:
	case <-time.After(30 * time.Second):
		r.tb.Errorf("the relay does not stop")
		return time.Since(start)
	}
	if r.err != nil {
		r.tb.Errorf("Run = %v, want nil", r.err)
	}
	return time.Since(start)
}

// runs reports an error when the relay has ended.
func (r *running) runs() {
	r.tb.Helper()
	select {
	case <-r.done:
		r.tb.Errorf("the relay has ended: %v", r.err)
	default:
	}
}

// through returns a proxy to the server at address, and the URL that leads
// through it.
func (s *stack) through(address string) (*faultproxy.Proxy, string) {
	s.Helper()
	u, err := url.Parse(address)
	s.must(err)
	p, err := faultproxy.Start(u.Host)
	s.must(err)
	s.Cleanup(p.Close)
	u.Host = p.Addr()
	return p, u.String()
}

// option returns a URL with one option more.
func option(address, name, value string) string {
	sep := "?"
	if strings.Contains(address, "?") {
		sep = "&"
	}
	return address + sep + name + "=" + value
}

// eventually waits until ok, and fails the test when that takes longer than limit.
func (s *stack) eventually(limit time.Duration, what string, ok func() bool) time.Duration {
	s.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > limit {
			s.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

func TestRelayThatIsStoppedAtOnceEndsCleanly(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		for range 20 {
			s.quickRelay().end()
		}
	})
}
