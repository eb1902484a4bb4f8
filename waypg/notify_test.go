package waypg_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// channel is the documented name, by the documented formula.
func channel(t testing.TB, db *waypg.DB, prefix, transport string) (name string) {
	t.Helper()
	if err := db.Pool().QueryRow(t.Context(), `SELECT 'waybill_' || md5(current_database() || '/"' || current_schema() || '".`+prefix+`/`+transport+`')`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name
}

// overhearing returns the announcements on a channel from now on.
func overhearing(t testing.TB, dsn, channel string) <-chan *pgconn.Notification {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "LISTEN "+channel); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	heard, done := make(chan *pgconn.Notification, 10_000), make(chan struct{})
	go func() {
		defer close(done)
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return
			}
			heard <- n
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = conn.Close(context.Background())
	})
	return heard
}

// NOTIFY in the writer's transaction would have all commits wait for each other.
func TestCommitIsAnnouncedOutsideOfItsTransaction(t *testing.T) {
	t.Parallel()
	for name, through := range map[string]func(t testing.TB, dsn string) string{"direct": func(_ testing.TB, dsn string) string { return dsn }, "pooled": bounced} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := testserver.Postgres(t)
			db := openAt(t, through(t, dsn), waypg.Config{Notify: true})
			exec(t, db, "CREATE TABLE writer (pid int DEFAULT pg_backend_pid())")
			heard := overhearing(t, dsn, channel(t, db, "waybill_", "default"))
			for _, s := range sessions(t, db, outbox.Config{}) {
				write := func(outcome error) error {
					return s.inTx(t.Context(), func(ctx context.Context, tx unit) error {
						_, err := tx.dispatch(ctx, order{"k", 0})
						return errors.Join(err, tx.exec(ctx, "INSERT INTO writer DEFAULT VALUES"), outcome)
					})
				}
				if err := write(errChangedMind); !errors.Is(err, errChangedMind) {
					t.Fatal(err)
				}
				select {
				case n := <-heard:
					t.Errorf("%s: %+v was announced, and nothing was committed", s.name, n)
				case <-time.After(100 * time.Millisecond):
				}
				if err := write(nil); err != nil {
					t.Fatal(err)
				}
				select {
				case n := <-heard: // a pooler may lend the writer's session to another
					if name == "direct" && count(t, db, "SELECT count(*) FROM writer WHERE pid = $1", n.PID) != 0 {
						t.Errorf("%s: the writer itself has announced", s.name)
					}
				case <-time.After(10 * time.Second):
					t.Fatalf("%s: the commit was not announced", s.name)
				}
			}
		})
	}
}

func TestAnnouncementsAreMerged(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	db := openAt(t, dsn, waypg.Config{Notify: true})
	heard := overhearing(t, dsn, channel(t, db, "waybill_", "default"))
	out := newOutbox(t, db, outbox.Config{})
	start := time.Now()
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for seq := range 125 {
				err := out.InTx(context.Background(), func(ctx context.Context, tx waypg.Tx) error {
					_, err := tx.Dispatch(ctx, order{fmt.Sprint("k", w), seq})
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	took := time.Since(start)
	sent := func() int { return int(db.NotifyStats().Sent) }
	before := sent()
	time.Sleep(100 * time.Millisecond) // no more must come: there are no commits
	await(t, "all arrive", 60*time.Second, func() bool { return len(heard) == sent() })
	n, most := sent(), int(took/(10*time.Millisecond))+2
	t.Logf("1000 commits in %v: %d announcements", took, n)
	if n < 1 || n > most || n > before+2 { // one on its way, and one for commits meanwhile
		t.Errorf("1000 commits in %v made %d announcements, want 1 to %d; %d when the last was committed", took, n, most, before)
	}
}

// stallable is a network whose connections, once it is stalled, accept data and
// deliver nothing.
type stallable struct {
	stalled atomic.Bool
	dialed  atomic.Int64
}

func (s *stallable) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	number := s.dialed.Add(1)
	if s.stalled.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &stallableConn{conn, s, number}, nil
}

type stallableConn struct {
	net.Conn
	of     *stallable
	number int64
}

// Write swallows the notifier's data: its connections come after the pool's only
// one.
func (c *stallableConn) Write(b []byte) (int, error) {
	if c.of.stalled.Load() && c.number > 1 {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Whatever becomes of announcements, a dispatcher does not wait for them and
// does not fail by them; it is logged and counted.
func TestDispatchersDoNotWaitForAnnouncements(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	openAt(t, dsn, waypg.Config{})
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	network := &stallable{}
	cfg.MaxConns = 1
	cfg.ConnConfig.DialFunc = network.dial
	var log lockedBuffer
	db := over(t, cfg, waypg.Config{Notify: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	out := newOutbox(t, db, outbox.Config{})
	dispatch := func() time.Duration {
		start := time.Now()
		err := out.InTx(t.Context(), func(ctx context.Context, tx waypg.Tx) error {
			_, err := tx.Dispatch(ctx, order{"k", 0})
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return time.Since(start)
	}
	dispatch()
	await(t, "the first is announced", 60*time.Second, func() bool { return db.NotifyStats().Sent == 1 })
	network.stalled.Store(true)
	var took []time.Duration
	for start := time.Now(); time.Since(start) < 5*time.Second; time.Sleep(20 * time.Millisecond) {
		took = append(took, dispatch())
	}
	slices.Sort(took)
	if median := took[len(took)/2]; median > time.Second { // an announcement gives up after two
		t.Errorf("the median of %d dispatches took %v while announcements were stuck", len(took), median)
	}
	await(t, "two failures are counted", 60*time.Second, func() bool { dispatch(); return db.NotifyStats().Failed >= 2 })
	network.stalled.Store(false)
	await(t, "it announces again", 60*time.Second, func() bool { dispatch(); return db.NotifyStats().Sent > 1 })
	if n := strings.Count(log.String(), "cannot be announced"); n != 1 {
		t.Errorf("the outage was logged %d times, want once:\n%s", n, log.String())
	}
	if n := strings.Count(log.String(), "announced again"); n != 1 {
		t.Errorf("the end of the outage was logged %d times, want once:\n%s", n, log.String())
	}

	// Close does not wait for long either.
	network.stalled.Store(true)
	dispatch()
	start := time.Now()
	if err := db.Close(); err != nil || time.Since(start) > 15*time.Second {
		t.Errorf("Close = %v after %v", err, time.Since(start))
	}
}

// The first commit after an idle time is announced at once, later ones together at
// the end of the window; a process that ends sends its pending announcements.
func TestFirstCommitIsAnnouncedAtOnceAndTheLastAtTheEnd(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	heard := overhearing(t, dsn, channel(t, openAt(t, dsn, waypg.Config{}), "waybill_", "default"))
	db, err := waypg.Open(t.Context(), dsn, waypg.Config{Notify: true})
	if err != nil {
		t.Fatal(err)
	}
	db.SetNotifyEvery(time.Hour)
	put(t, db, outbox.Config{}, order{"k", 0})
	await(t, "the first is announced", 60*time.Second, func() bool { return len(heard) == 1 })
	for seq := range 5 {
		put(t, db, outbox.Config{}, order{"k", seq + 1})
	}
	time.Sleep(100 * time.Millisecond)
	if n := len(heard); n != 1 {
		t.Errorf("%d announcements within the window, want one", n)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	await(t, "the others are announced", 60*time.Second, func() bool { return len(heard) == 2 })
	if got := db.NotifyStats(); got.Sent != 2 || got.Failed != 0 {
		t.Errorf("%+v, want two sent", got)
	}
}

func TestReleaseIsAnnounced(t *testing.T) {
	t.Parallel()
	db := openAt(t, testserver.Postgres(t), waypg.Config{Notify: true})
	db.SetNotifyEvery(0)
	put(t, db, outbox.Config{}, order{"k", 0})
	c := claim(t, db, "default", manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	await(t, "the dispatch is announced", 60*time.Second, func() bool { return db.NotifyStats().Sent == 1 })
	if n, err := db.Release(t.Context(), admin.BlockedQuery{}); err != nil || n != 1 {
		t.Fatalf("Release = %d, %v, want 1", n, err)
	}
	await(t, "the release is announced", 60*time.Second, func() bool { return db.NotifyStats().Sent == 2 })
}

// The error for a wrong listen DSN must not contain its password.
func TestListenDSNIsNotPrinted(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://waybill@127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, dsn := range []string{"postgres://app:c4nary@host:port/x", "postgres://app:c4nary@h/x?sslmode=y", "postgres://app:c4nary@h/%zz", "host=h password=c4nary sslmode=y", "host=h password='c4nary' port=x", "://app:c4nary@h"} {
		_, err := waypg.New(pool, waypg.Config{Listen: dsn})
		if err == nil || strings.Contains(err.Error(), "c4nary") || !strings.Contains(err.Error(), "Listen") {
			t.Errorf("New with Listen %s = %v", dsn, err)
		}
	}
}

// The formula of docs/schema.md in another language than SQL.
func TestChannelHasTheDocumentedName(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	db := openAt(t, dsn, waypg.Config{Notify: true, Schema: "shop", Prefix: "w_"})
	var database string
	if err := db.Pool().QueryRow(t.Context(), "SELECT current_database()").Scan(&database); err != nil {
		t.Fatal(err)
	}
	heard := overhearing(t, dsn, fmt.Sprintf("waybill_%x", md5.Sum([]byte(database+`/"shop".w_/events`))))
	put(t, db, outbox.Config{Routes: waybill.Routes{"*": {"events", "mail"}}}, order{"k", 0})
	select {
	case <-heard:
	case <-time.After(10 * time.Second):
		t.Error("nothing was announced on the documented channel")
	}
}

// lockedBuffer is a log that goroutines write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
