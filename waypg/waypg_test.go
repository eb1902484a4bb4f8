package waypg_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/waytest"
	"github.com/waybill-go/waybill/worker"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests wait for servers most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	code := m.Run()
	forPackage.end()
	os.Exit(code)
}

// packageTB lets a server live as long as the package's tests.
type packageTB struct {
	testing.TB
	cleanups []func()
}

var forPackage = &packageTB{}

func (*packageTB) Failed() bool                      { return false }
func (*packageTB) Helper()                           {}
func (tb *packageTB) Cleanup(fn func())              { tb.cleanups = append(tb.cleanups, fn) }
func (*packageTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*packageTB) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (tb *packageTB) end() {
	for _, fn := range tb.cleanups {
		fn()
	}
}

// An opener returns the DSN of an empty database of t's own.
type opener func(t testing.TB) string

var bouncer struct {
	once sync.Once
	host string
}

// pooled is an opener whose connections go through a PgBouncer in transaction
// mode.
func pooled(t testing.TB) string {
	t.Helper()
	return bounced(t, testserver.Postgres(t))
}

// bounced is a database as it is reached through that PgBouncer.
func bounced(t testing.TB, dsn string) string {
	t.Helper()
	bouncer.once.Do(func() {
		u, err := url.Parse(testserver.StartPgBouncer(forPackage, dsn, "transaction"))
		if err != nil {
			t.Fatal(err)
		}
		bouncer.host = u.Host
	})
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = bouncer.host
	return u.String()
}

// everywhere runs a test on a server and behind a pooler, so with cached statements
// and without.
func everywhere(t *testing.T, test func(t *testing.T, at opener)) {
	t.Parallel()
	for name, at := range map[string]opener{"direct": testserver.Postgres, "pooled": pooled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, at)
		})
	}
}

// order is the message of these tests.
type order struct {
	Key string `json:"key"`
	Seq int    `json:"seq"`
}

func (order) MessageName() string    { return "order.placed" }
func (o order) PartitionKey() string { return o.Key }

// open returns a database of the test's own, with tables.
func open(t testing.TB, at opener, cfg waypg.Config) *waypg.DB {
	t.Helper()
	return openAt(t, at(t), cfg)
}

func openAt(t testing.TB, dsn string, cfg waypg.Config) *waypg.DB {
	t.Helper()
	db := connect(t, dsn, cfg)
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

// over returns a database on a pool of the test's own.
func over(t testing.TB, pool *pgxpool.Config, cfg waypg.Config) *waypg.DB {
	t.Helper()
	p, err := pgxpool.NewWithConfig(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	db, err := waypg.New(p, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// connect is openAt without tables.
func connect(t testing.TB, dsn string, cfg waypg.Config) *waypg.DB {
	t.Helper()
	db, err := waypg.Open(t.Context(), dsn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// One that is closed is counted until it is.
		await(t, "all connections are given back", 60*time.Second, func() bool { return db.Pool().Stat().AcquiredConns() == 0 })
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// openAtSame opens the database as another process would.
func openAtSame(t testing.TB, db *waypg.DB) *waypg.DB {
	return connect(t, db.Pool().Config().ConnString(), waypg.Config{})
}

func newOutbox(t testing.TB, db *waypg.DB, cfg outbox.Config) *outbox.Outbox[pgx.Tx] {
	t.Helper()
	out, err := outbox.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func newQueue(t testing.TB, db *waypg.DB, name string, cfg waypg.QueueConfig) *waypg.Queue {
	t.Helper()
	q, err := db.Queue(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func exec(t testing.TB, db *waypg.DB, statements string, args ...any) {
	t.Helper()
	mode := []any{pgx.QueryExecModeSimpleProtocol}
	if _, err := db.Pool().Exec(t.Context(), statements, append(mode, args...)...); err != nil {
		t.Fatal(err)
	}
}

func count(t testing.TB, db *waypg.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.Pool().QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// await waits for a condition.
func await(t testing.TB, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Since(start) > within {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}

// A session is one of the two libraries whose transactions an outbox takes.
type session struct {
	name string
	inTx func(ctx context.Context, fn func(ctx context.Context, tx unit) error) error
}

// A unit is a unit of work in either library.
type unit struct {
	dispatch  func(ctx context.Context, msg any, stamps ...waybill.Stamp) (waybill.MessageID, error)
	savepoint func(ctx context.Context, fn func(ctx context.Context) error) error
	exec      func(ctx context.Context, statement string) error
}

func sessions(t testing.TB, db *waypg.DB, cfg outbox.Config) []session {
	t.Helper()
	std, err := outbox.New(db.SQL(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	own := newOutbox(t, db, cfg)
	return []session{
		{"pgx", func(ctx context.Context, fn func(ctx context.Context, tx unit) error) error {
			return own.InTx(ctx, func(ctx context.Context, tx waypg.Tx) error {
				return fn(ctx, unit{tx.Dispatch, tx.Savepoint, func(ctx context.Context, statement string) error {
					_, err := tx.SQL().Exec(ctx, statement)
					return err
				}})
			})
		}},
		{"database/sql", func(ctx context.Context, fn func(ctx context.Context, tx unit) error) error {
			return std.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*sql.Tx]) error {
				return fn(ctx, unit{tx.Dispatch, tx.Savepoint, func(ctx context.Context, statement string) error {
					_, err := tx.SQL().ExecContext(ctx, statement)
					return err
				}})
			})
		}},
	}
}

// recorder is a publisher that records every message that refuse does not reject.
type recorder struct {
	waytest.NoTraits
	refuse func(rec *waybill.Record) error

	mu  sync.Mutex
	got []order
	ids []waybill.MessageID
}

func (r *recorder) Publish(_ context.Context, items []outbox.Item, results chan<- outbox.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range items {
		var err error
		if r.refuse != nil {
			err = r.refuse(item.Record)
		}
		if err == nil {
			r.got = append(r.got, bodyOf(item.Record))
			r.ids = append(r.ids, item.Record.ID)
		}
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

func (r *recorder) all() []order {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]order{}, r.got...)
}

func bodyOf(rec *waybill.Record) (o order) {
	_ = waybill.JSON{}.Decode(rec.Body, &o)
	return o
}

// put dispatches msgs in one unit of work.
func put(t testing.TB, db *waypg.DB, cfg outbox.Config, msgs ...any) {
	t.Helper()
	out := newOutbox(t, db, cfg)
	err := out.InTx(t.Context(), func(ctx context.Context, tx waypg.Tx) error {
		_, err := out.DispatchAll(ctx, tx.SQL(), msgs...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func newRelay(t testing.TB, db *waypg.DB, to outbox.Publisher, cfg outbox.RelayConfig) *outbox.Relay {
	t.Helper()
	relay, err := outbox.NewRelay(db, to, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return relay
}

// drain relays all that is due.
func drain(t testing.TB, db *waypg.DB, to outbox.Publisher, cfg outbox.RelayConfig) {
	t.Helper()
	cfg.Drain = true
	if err := newRelay(t, db, to, cfg).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// relaying runs a relay until the returned function is called, or the test
// ends.
func relaying(t testing.TB, db *waypg.DB, to outbox.Publisher, cfg outbox.RelayConfig) (stop func()) {
	t.Helper()
	relay := newRelay(t, db, to, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("relay: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

var (
	errChangedMind = errors.New("changed my mind")
	errRefused     = errors.New("refused by the broker")

	// noRetry means no second attempt before the test says so, however slow the
	// machine is.
	noRetry  = waybill.Backoff{Delay: time.Hour, MaxDelay: time.Hour, Jitter: -1}
	manyRows = outbox.ClaimLimit{Rows: 1 << 20, Bytes: 1 << 30}
)

// claimAll claims and lets go again.
func claimAll(t testing.TB, db *waypg.DB, transport string) []outbox.ClaimedRow {
	t.Helper()
	var all []outbox.ClaimedRow
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed} {
		c, err := db.Claim(t.Context(), transport, part, manyRows)
		if err != nil {
			t.Fatal(err)
		}
		settle(t, c, nil)
		all = append(all, c.Rows()...)
	}
	return all
}

func claim(t testing.TB, db *waypg.DB, transport string, max outbox.ClaimLimit) outbox.Claim {
	t.Helper()
	c, err := db.Claim(t.Context(), transport, outbox.Keyed, max)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// claimPart claims any part of the default transport.
func claimPart(t testing.TB, db *waypg.DB, part outbox.Part) outbox.Claim {
	t.Helper()
	c, err := db.Claim(t.Context(), "default", part, manyRows)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func settle(t testing.TB, c outbox.Claim, published []outbox.ClaimedRow, failed ...outbox.Failure) {
	t.Helper()
	if err := c.Settle(context.WithoutCancel(t.Context()), published, failed); err != nil {
		t.Fatal(err)
	}
}

// pending returns the messages in the outbox, ordered by id.
func pending(t testing.TB, db *waypg.DB, transport string) []order {
	t.Helper()
	rows, err := db.Pool().Query(t.Context(), `SELECT o.body FROM (
		SELECT transport, id, body FROM waybill_outbox UNION ALL SELECT transport, id, body FROM waybill_outbox_unkeyed) AS o JOIN waybill_transport AS l ON l.id = o.transport
		WHERE l.name = $1 ORDER BY o.id`, transport)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o order, err error) {
		var body []byte
		if err = row.Scan(&body); err == nil {
			err = waybill.JSON{}.Decode(body, &o)
		}
		return o, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// perKey counts the messages of each key, and fails unless they came in order.
func perKey(t testing.TB, got []order) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, o := range got {
		if o.Key != "" && o.Seq != n[o.Key] {
			t.Errorf("key %s: %d came, want %d", o.Key, o.Seq, n[o.Key])
		}
		n[o.Key]++
	}
	return n
}

func TestMessageTravelsFromTransactionToEffect(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		orders, broker, billing := open(t, at, waypg.Config{}), open(t, at, waypg.Config{}), open(t, at, waypg.Config{})
		exec(t, billing, "CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, k text, seq int)")
		out := newOutbox(t, orders, outbox.Config{To: "events"})
		const keys, each = 5, 20
		for seq := range each {
			for key := range keys {
				err := out.InTx(t.Context(), func(ctx context.Context, tx waypg.Tx) error {
					_, err := tx.Dispatch(ctx, order{string(rune('a' + key)), seq})
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		drain(t, orders, newQueue(t, broker, "events", waypg.QueueConfig{}), outbox.RelayConfig{Transport: "events"})

		bus := waybill.NewBus("main")
		inbox.Handle(bus, billing, "billing", func(ctx context.Context, tx pgx.Tx, m order) error {
			_, err := tx.Exec(ctx, "INSERT INTO effects (k, seq) VALUES ($1, $2)", m.Key, m.Seq)
			return err
		})
		w, err := worker.New(bus, newQueue(t, broker, "events", waypg.QueueConfig{}), worker.Config{Transport: "events", Idle: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for key, n := range perKey(t, effects(t, billing)) {
			if n != each {
				t.Errorf("key %s has %d effects, want %d", key, n, each)
			}
		}
	})
}

// effects returns what handlers have written, in order.
func effects(t testing.TB, db *waypg.DB) []order {
	t.Helper()
	rows, err := db.Pool().Query(t.Context(), "SELECT k, seq FROM effects ORDER BY n")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[order])
	if err != nil {
		t.Fatal(err)
	}
	return all
}
