package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

func TestClaimOfAFrozenRelayGoesToAnother(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		dsn := at(t)
		frozen := openAt(t, dsn, waypg.Config{IdleTimeout: 8 * time.Second})
		other := connect(t, dsn, waypg.Config{})
		put(t, frozen, outbox.Config{}, order{"k", 0})
		c := claim(t, frozen, "default", manyRows)
		if n := len(claimAll(t, other, "default")); n != 0 {
			t.Errorf("%d rows are in two hands", n)
		}
		var taken outbox.Claim
		await(t, "the other has the rows", 60*time.Second, func() bool {
			taken = claim(t, other, "default", manyRows)
			return len(taken.Rows()) == 1
		})
		if err := c.Settle(t.Context(), c.Rows(), nil); !errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("Settle of the frozen one = %v, want ErrUnavailable", err)
		}
		settle(t, taken, nil)
		if got := namesOf(claimAll(t, frozen, "default")); got != "k0" {
			t.Errorf("the frozen one sees %q now, want all: its marks are worth nothing", got)
		}
	})
}

// A server that is blocked in sending rows to a client that does not read is
// not idle, and no timeout ends it.
func TestSessionStuckInSendingIsEndedByTheSuccessor(t *testing.T) {
	t.Parallel()
	for part, key := range map[outbox.Part]string{outbox.Keyed: "k", outbox.Unkeyed: ""} {
		dsn := testserver.Postgres(t)
		other := openAt(t, dsn, waypg.Config{IdleTimeout: time.Second})
		frozen, goOn := stalled(t, dsn, waypg.Config{IdleTimeout: time.Second})
		var msgs []any
		for range 24 {
			msgs = append(msgs, waybill.RawMessage{Name: "big", Key: key, ContentType: "x/y", Body: slices.Repeat([]byte("0123456789abcdef"), 1<<16)})
		}
		put(t, other, raw(), msgs...)
		done := make(chan error, 1)
		go func() {
			_, err := frozen.Claim(context.Background(), "default", part, outbox.ClaimLimit{Rows: 100, Bytes: 128 << 20})
			done <- err
		}()
		await(t, "the server is blocked in sending", 60*time.Second, blockedInSending(t, other))
		await(t, "the successor has the rows", 60*time.Second, func() bool {
			for _, part := range []outbox.Part{outbox.Keyed, part} { // the keyed claim includes upkeep
				c, err := other.Claim(t.Context(), "default", part, outbox.ClaimLimit{Rows: 100, Bytes: 4 << 20})
				if err != nil {
					t.Fatal(err)
				}
				settle(t, c, nil)
				if len(c.Rows()) > 0 {
					return true
				}
			}
			return false
		})
		goOn()
		if err := <-done; err == nil { // of the server's end
			t.Error("the frozen claim = nil, want an error")
		}
	}
}

// Claims of a queue take turns: a worker that is frozen in its own must not keep the others
// from the queue.
func TestTurnOfAFrozenWorkerEnds(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		dsn := at(t)
		frozen := openAt(t, dsn, waypg.Config{IdleTimeout: time.Second})
		local(t, frozen, order{"k", 0})
		silent(t, func(begun chan<- error, over <-chan struct{}) error { return frozen.HoldTurn("q", begun, over) })
		receiveSome(t, newQueue(t, connect(t, dsn, waypg.Config{}), "q", waypg.QueueConfig{Lease: 10 * time.Second}), 1) // longer than the timeout
	})
}

// A promotion holds dispatch locks, and an operator's action rows.
func TestTransactionOfAFrozenProcessEnds(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		for _, hold := range []func(*waypg.DB, string, chan<- error, <-chan struct{}) error{(*waypg.DB).HoldLock, (*waypg.DB).HoldRetry} {
			dsn := at(t)
			frozen := openAt(t, dsn, waypg.Config{IdleTimeout: time.Second})
			put(t, frozen, outbox.Config{}, order{"k", 0})
			lock := "LOCK TABLE waybill_transport IN ACCESS EXCLUSIVE MODE"
			silent(t, func(begun chan<- error, over <-chan struct{}) error { return hold(frozen, lock, begun, over) })
			if n := count(t, connect(t, dsn, waypg.Config{}), "SELECT count(*) FROM waybill_transport"); n == 0 {
				t.Error("no transport")
			}
		}
	})
}

// silent runs a transaction that is silent until the end of the test, and which must have lost
// its session by then.
func silent(t *testing.T, hold func(begun chan<- error, over <-chan struct{}) error) {
	t.Helper()
	begun, over, done := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	go func() { done <- hold(begun, over) }()
	t.Cleanup(func() {
		close(over)
		if err := <-done; err == nil {
			t.Error("the frozen transaction = nil, want an error")
		}
	})
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
}

// The retry queue of a transport is another than the queue of the same name: its claims do not
// wait for those of the queue.
func TestRetriesDoNotWaitForTheTurnOfTheirQueue(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{IdleTimeout: 30 * time.Second})
	retries, err := db.RetryQueue("q")
	if err != nil {
		t.Fatal(err)
	}
	if err := retries.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: record(t, order{"k", 0})}, Attempt: &worker.Attempt{At: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	begun, over, done := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	go func() { done <- db.HoldTurn("q", begun, over) }()
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // the turn lasts for longer
	defer cancel()
	if ds, err := retries.Receive(ctx, 1); err != nil || len(ds) != 1 {
		t.Errorf("received %d messages, %v", len(ds), err)
	}
	close(over)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// So is a worker that is frozen while the server sends it what it has leased.
func TestWorkerStuckInReceivingLosesItsTurn(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	other := openAt(t, dsn, waypg.Config{IdleTimeout: time.Second})
	frozen, goOn := stalled(t, dsn, waypg.Config{IdleTimeout: time.Second})
	var msgs []any
	for i := range 24 {
		msgs = append(msgs, waybill.RawMessage{Name: "big", Key: fmt.Sprint(i), ContentType: "x/y", Body: slices.Repeat([]byte("0123456789abcdef"), 1<<16)})
	}
	cfg := raw()
	cfg.To, cfg.Queues = "q", map[string]string{"q": "q"}
	put(t, other, cfg, msgs...)
	done := make(chan error, 1)
	slow := newQueue(t, frozen, "q", waypg.QueueConfig{Lease: time.Hour})
	go func() {
		_, err := slow.Receive(t.Context(), 100)
		done <- err
	}()
	await(t, "the server is blocked in sending", 60*time.Second, blockedInSending(t, other))
	q := newQueue(t, other, "q", waypg.QueueConfig{Lease: time.Second})
	await(t, "the successor has a message", 60*time.Second, func() bool {
		ds, err := q.Receive(t.Context(), 1)
		if err != nil && !errors.Is(err, waybill.ErrUnavailable) {
			t.Fatal(err)
		}
		return len(ds) > 0
	})
	goOn()
	if err := <-done; err == nil { // of the server's end
		t.Error("the frozen Receive = nil, want an error")
	}
}

// stalled connects through a proxy that stops in the middle of a long answer, until goOn.
func stalled(t *testing.T, dsn string, cfg waypg.Config) (db *waypg.DB, goOn func()) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	network := cutter{stall: 256 << 10, over: make(chan struct{})}
	goOn = sync.OnceFunc(func() { close(network.over) })
	u.Host = network.start(t, u.Host)
	t.Cleanup(goOn) // before the proxy ends
	return connect(t, u.String(), cfg), goOn
}

func blockedInSending(t *testing.T, db *waypg.DB) func() bool {
	return func() bool {
		return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'ClientWrite'") == 1
	}
}

// A relay that works, however slowly, is not stuck.
func TestHealthySessionIsNotEnded(t *testing.T) {
	t.Parallel()
	const idle = 8 * time.Second
	db := open(t, testserver.Postgres, waypg.Config{IdleTimeout: idle})
	put(t, db, outbox.Config{}, order{"k", 0})
	app, err := db.Pool().Begin(t.Context()) // and neither is an application's transaction
	if err != nil {
		t.Fatal(err)
	}
	defer app.Rollback(context.Background())
	if _, err := newOutbox(t, db, outbox.Config{}).Dispatch(t.Context(), app, order{"other", 0}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for time.Since(start) < idle+idle/2 {
		c := claim(t, db, "default", manyRows)
		time.Sleep(400 * time.Millisecond)
		settle(t, c, nil)
	}
	if err := app.Commit(t.Context()); err != nil {
		t.Errorf("the application's transaction was ended: %v", err)
	}
}

// P1: a crash must not lose rows that a relay may see, whatever the server's
// default; and a setting that is higher is not lowered.
func TestCommitOfAMessageIsDurable(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		cfg := outbox.Config{Routes: waybill.Routes{"*": {"events"}}, Queues: map[string]string{"q": "q"}, Transports: []string{"q"}}
		both := sessions(t, db, cfg)
		exec(t, db, `CREATE TABLE seen (n bigint GENERATED ALWAYS AS IDENTITY, t text, v text);
			CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen (t, v) VALUES (TG_TABLE_NAME, current_setting('synchronous_commit')); RETURN NULL; END $$;
			CREATE TRIGGER note AFTER INSERT ON waybill_outbox FOR EACH STATEMENT EXECUTE FUNCTION note();
			CREATE TRIGGER note AFTER INSERT ON waybill_outbox_unkeyed FOR EACH STATEMENT EXECUTE FUNCTION note();
			CREATE TRIGGER note AFTER INSERT ON waybill_delayed FOR EACH STATEMENT EXECUTE FUNCTION note();
			CREATE TRIGGER note AFTER INSERT ON waybill_queue FOR EACH STATEMENT EXECUTE FUNCTION note()`)
		kinds := map[string]func(ctx context.Context, tx unit) error{
			"one keyed":   func(ctx context.Context, tx unit) error { _, err := tx.dispatch(ctx, order{"k", 0}); return err },
			"one unkeyed": func(ctx context.Context, tx unit) error { _, err := tx.dispatch(ctx, order{"", 0}); return err },
			"two unkeyed": func(ctx context.Context, tx unit) error {
				_, err := tx.dispatch(ctx, order{"", 0})
				_, again := tx.dispatch(ctx, order{"", 0})
				return errors.Join(err, again)
			},
			"two keyed": func(ctx context.Context, tx unit) error {
				_, err := tx.dispatch(ctx, order{"k", 0})
				_, again := tx.dispatch(ctx, order{"l", 0})
				return errors.Join(err, again)
			},
			"delayed": func(ctx context.Context, tx unit) error {
				_, err := tx.dispatch(ctx, order{"k", 0}, waybill.Delay(time.Hour))
				return err
			},
			"queue": func(ctx context.Context, tx unit) error {
				_, err := tx.dispatch(ctx, order{"", 0}, waybill.TransportNames{"q"})
				return err
			},
			"waybill_dispatch": func(ctx context.Context, tx unit) error {
				return tx.exec(ctx, "SELECT waybill_dispatch('x', 'k', '{}', '', 'events')")
			},
		}
		for set, want := range map[string]string{"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply"} {
			for _, s := range both {
				for kind, dispatch := range kinds {
					exec(t, db, "TRUNCATE seen")
					if err := s.inTx(t.Context(), func(ctx context.Context, tx unit) error {
						if err := tx.exec(ctx, "SET LOCAL synchronous_commit = "+set); err != nil {
							return err
						}
						return dispatch(ctx, tx)
					}); err != nil {
						t.Fatal(err)
					}
					var got string
					if err := db.Pool().QueryRow(t.Context(), "SELECT v FROM seen ORDER BY n DESC LIMIT 1").Scan(&got); err != nil || got != want {
						t.Errorf("%s, %s, set to %s: committed with %q (%v), want %s", s.name, kind, set, got, err, want)
					}
				}
			}
		}
	})
}

// The server is killed again and again, under dispatchers and a relay: every
// message whose commit is known comes, and none comes whose transaction is gone.
func TestServerThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	server := testserver.StartPostgres(t, map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s", "autovacuum": "off"})
	db := openAt(t, server.URL(), waypg.Config{})
	exec(t, db, "CREATE TABLE orders (id uuid PRIMARY KEY)")
	both := sessions(t, db, outbox.Config{})
	sink := &recorder{}
	relaying(t, db, sink, outbox.RelayConfig{Retry: noRetry})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var committed []waybill.MessageID
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				var id waybill.MessageID
				err := both[i%2].inTx(context.Background(), func(ctx context.Context, tx unit) (err error) {
					if id, err = tx.dispatch(ctx, order{string(rune('a' + i)), 0}); err != nil {
						return err
					}
					return tx.exec(ctx, "INSERT INTO orders VALUES ('"+id.String()+"')")
				})
				if err == nil {
					mu.Lock()
					committed = append(committed, id)
					mu.Unlock()
				} else {
					time.Sleep(5 * time.Millisecond) // the server is down
				}
			}
		})
	}
	for range 3 {
		before := len(sink.all())
		await(t, "messages come", 60*time.Second, func() bool { return len(sink.all()) > before+20 })
		server.Kill()
		server.Start()
	}
	cancel()
	all.Wait()
	await(t, "the outbox is empty", 60*time.Second, func() bool {
		n := 1
		err := db.Pool().QueryRow(t.Context(), "SELECT count(*) FROM waybill_outbox").Scan(&n)
		return err == nil && n == 0
	})
	rows, err := db.Pool().Query(t.Context(), "SELECT id FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	orders, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	if err != nil {
		t.Fatal(err)
	}
	exists, came := map[waybill.MessageID]bool{}, map[waybill.MessageID]bool{}
	for _, id := range orders {
		exists[id] = true
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for _, id := range sink.ids {
		if came[id] = true; !exists[id] {
			t.Errorf("message %s came and its transaction is gone", id)
		}
	}
	lost := 0
	for _, id := range committed {
		if !came[id] {
			lost++
		}
	}
	t.Logf("%d committed, %d came", len(committed), len(sink.ids))
	if lost > 0 || len(orders) != len(came) {
		t.Errorf("%d of %d messages are lost; %d orders, %d messages", lost, len(committed), len(orders), len(came))
	}
}

func TestErrorsSayWhetherTheDatabaseIsOutOfReach(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	db := openAt(t, dsn, waypg.Config{})
	// No server listens.
	if _, err := waypg.Open(t.Context(), "postgres://waybill@127.0.0.1:1/x?connect_timeout=1", waypg.Config{}); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Open where nobody listens = %v, want ErrUnavailable", err)
	}
	if _, err := waypg.Open(t.Context(), "postgres://waybill:secret@127.0.0.1:1/%zz", waypg.Config{}); err == nil || errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Open of a wrong DSN = %v", err)
	}
	// A login that is refused: a mistake at the start, and later perhaps a password that is just changed.
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User("nobody")
	if _, err := waypg.Open(t.Context(), u.String(), waypg.Config{}); err == nil || errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Open with a refused login = %v, want another error than ErrUnavailable", err)
	}
	pool, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	refused, err := waypg.New(pool, waypg.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := refused.SchemaStatus(t.Context()); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("SchemaStatus with a refused login = %v, want ErrUnavailable", err)
	}
	// A role that may only read.
	exec(t, db, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$")
	reader := connect(t, dsn, waypg.Config{})
	put(t, db, outbox.Config{}, order{"k", 0})
	if _, err := reader.Claim(t.Context(), "default", outbox.Keyed, manyRows); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Claim on a read-only server = %v, want ErrUnavailable", err)
	}
}

// A relay that is connected to a standby says where to connect it to, and waits: the
// standby may be promoted.
func TestRelayOnAStandbyNamesThePrimary(t *testing.T) {
	t.Parallel()
	server := testserver.StartPostgres(t, nil)
	db := openAt(t, server.URL(), waypg.Config{})
	var data string
	if err := db.Pool().QueryRow(t.Context(), "SHOW data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	signal := filepath.Join(data, "standby.signal")
	if err := errors.Join(os.WriteFile(signal, nil, 0o600), chownLike(signal, filepath.Join(data, "PG_VERSION"))); err != nil {
		t.Fatal(err)
	}
	server.Start()
	standby := connect(t, server.URL(), waypg.Config{})
	_, err := standby.StartRelay(t.Context())
	if !errors.Is(err, waybill.ErrUnavailable) || !strings.Contains(err.Error(), "read-only standby: connect the relay to the primary") {
		t.Errorf("Lead on a standby = %v, want ErrUnavailable and where to connect to", err)
	}
}

// chownLike gives a file the owner of another one.
func chownLike(file, other string) error {
	info, err := os.Stat(other)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return os.Chown(file, int(owner.Uid), int(owner.Gid))
}
