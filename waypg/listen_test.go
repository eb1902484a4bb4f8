package waypg_test

import (
	"context"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// hardly is a relay that finds nothing by polling before a test is over.
var hardly = outbox.RelayConfig{PollMin: time.Hour, PollMax: time.Hour}

// comes dispatches in one process and waits for the message in a relay's sink.
func comes(t testing.TB, from *waypg.DB, sink *recorder, within time.Duration) {
	t.Helper()
	n := len(sink.all())
	put(t, from, outbox.Config{}, order{"k", n})
	start := time.Now()
	await(t, "the message comes", within, func() bool { return len(sink.all()) > n })
	t.Logf("it came after %v", time.Since(start))
}

// listeners counts the sessions that listen in the database of db.
func listeners(t testing.TB, db *waypg.DB) int {
	t.Helper()
	return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'waybill listener'")
}

func TestCommitInAnotherProcessWakesTheRelay(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	for name, at := range map[string]struct {
		dsn    string
		notify bool
		listen string
	}{
		"direct":                            {dsn, true, ""},
		"behind a pooler":                   {bounced(t, dsn), true, dsn},
		"behind a pooler, and only listens": {bounced(t, dsn), false, dsn},
	} {
		here := openAt(t, at.dsn, waypg.Config{Notify: true})
		there := connect(t, at.dsn, waypg.Config{Notify: at.notify, Listen: at.listen})
		sink := &recorder{}
		stop := relaying(t, there, sink, hardly)
		await(t, name+": it listens", 60*time.Second, func() bool { return listeners(t, here) == 1 })
		for range 3 {
			comes(t, here, sink, 60*time.Second)
		}
		if why := there.ListenError(); why != "" {
			t.Errorf("%s: ListenError = %s", name, why)
		}
		stop()
		await(t, name+": it listens no more", 60*time.Second, func() bool { return listeners(t, here) == 0 })
	}
}

// A queue's receivers hear of what other processes send to it, by a relay or in a
// transaction, and of no other queue.
func TestCommitInAnotherProcessWakesTheReceiver(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	here := openAt(t, dsn, waypg.Config{Notify: true})
	there := connect(t, dsn, waypg.Config{Notify: true})
	local(t, here, order{"x", 0})
	receiveSome(t, newQueue(t, there, "q", waypg.QueueConfig{}), 1)
	await(t, "it listens", 60*time.Second, func() bool { return listeners(t, here) == 1 })
	hints(there.QueueWake("q"), 1) // to look once after it began to listen
	for name, send := range map[string]func() error{
		"a sender": func() error {
			return newQueue(t, here, "q", waypg.QueueConfig{}).Send(t.Context(), record(t, order{"x", 0}))
		},
		"a transaction": func() error { local(t, here, order{"x", 2}); return nil },
	} {
		if err := send(); err != nil {
			t.Fatal(err)
		}
		if n := hints(there.QueueWake("q"), 1); n != 1 {
			t.Errorf("%s: %d hints, want 1", name, n)
		}
	}
	if err := newQueue(t, here, "other", waypg.QueueConfig{}).Send(t.Context(), record(t, order{"x", 0})); err != nil {
		t.Fatal(err)
	}
	if n := hints(there.QueueWake("q"), 0); n != 0 {
		t.Errorf("another queue: %d hints, want none", n)
	}
}

// hints counts the hints that come until a moment passes without one. Wanted ones
// may take their time.
func hints(wake <-chan struct{}, wanted int) (n int) {
	for {
		wait := 200 * time.Millisecond
		if n < wanted {
			wait = 10 * time.Second
		}
		select {
		case <-wake:
			n++
		case <-time.After(wait):
			return n
		}
	}
}

func TestOnlyRelaysOfTheTransportAreWoken(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	here := openAt(t, dsn, waypg.Config{Notify: true})
	wakes := map[string]<-chan struct{}{}
	for name, of := range map[string]struct {
		cfg       waypg.Config
		transport string
	}{
		"the same":          {waypg.Config{Notify: true}, "events"},
		"another transport": {waypg.Config{Notify: true}, "mail"},
		"another prefix":    {waypg.Config{Notify: true, Prefix: "w_"}, "events"},
		"another schema":    {waypg.Config{Notify: true, Schema: "shop"}, "events"},
	} {
		db := openAt(t, dsn, of.cfg)
		release, err := db.StartRelay(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		wakes[name] = db.Wake(of.transport, outbox.Keyed)
		if n := hints(wakes[name], 1); n != 1 {
			t.Errorf("%s: %d hints when it begins to listen, want one: what was committed before is not heard", name, n)
		}
	}
	put(t, here, outbox.Config{To: "events"}, order{"k", 0})
	for _, name := range []string{"the same", "another transport", "another prefix", "another schema"} {
		want := 0
		if name == "the same" {
			want = 1
		}
		if n := hints(wakes[name], want); n != want {
			t.Errorf("%s: %d hints, want %d", name, n, want)
		}
	}
	// Any program may announce its commits.
	exec(t, here, "SELECT pg_notify('waybill_' || md5(current_database() || '/\"public\".waybill_/events'), '')")
	if n := hints(wakes["the same"], 1); n != 1 {
		t.Errorf("%d hints of a program's own NOTIFY, want 1", n)
	}
}

// A process that relays its own messages gets one hint for a commit, not two.
func TestOwnAnnouncementsAreNotHeard(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{Notify: true})
	release, err := db.StartRelay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	wake := db.Wake("default", outbox.Keyed)
	hints(wake, 1)
	put(t, db, outbox.Config{}, order{"k", 0})
	n := hints(wake, 1)
	await(t, "the announcement is sent", 60*time.Second, func() bool { return db.NotifyStats().Sent > 0 })
	if n != 1 || db.NotifyStats().Sent != 1 {
		t.Errorf("%d hints, %+v, want one hint and one announcement", n, db.NotifyStats())
	}
}

// degraded waits until the one relay says that it is degraded, or that it is not.
func degraded(t testing.TB, db *waypg.DB, want bool) (r admin.Relay) {
	t.Helper()
	await(t, "a report", 60*time.Second, func() bool {
		all, err := db.Relays(t.Context())
		if err != nil || len(all) != 1 {
			return false
		}
		r = all[0]
		return (r.Degraded != "") == want && (r.Since != nil) == want && r.Problem == ""
	})
	return r
}

func TestRelayThatTurnsDeafPollsAndSaysSo(t *testing.T) {
	t.Parallel()
	const heartbeat = time.Second
	dsn := testserver.Postgres(t)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.Start(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	u.Host = proxy.Addr()
	here := openAt(t, dsn, waypg.Config{Notify: true})
	there := connect(t, dsn, waypg.Config{Listen: u.String()})
	there.SetHeartbeat(heartbeat)
	var log lockedBuffer
	sink := &recorder{}
	put(t, here, outbox.Config{}, order{"k", 0}) // registers the transport: a relay warns of one without an outbox
	relaying(t, there, sink, outbox.RelayConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
	await(t, "the message comes", 60*time.Second, func() bool { return len(sink.all()) == 1 })
	await(t, "it listens", 60*time.Second, func() bool { return listeners(t, here) == 1 })
	degraded(t, here, false)
	var noticed []time.Duration
	for outage := 1; outage <= 2; outage++ {
		proxy.BlackHole(true)
		start := time.Now()
		comes(t, here, sink, 60*time.Second) // polling
		await(t, "it does not listen", 60*heartbeat, func() bool { return there.ListenError() != "" })
		noticed = append(noticed, time.Since(start))
		degraded(t, here, true)
		comes(t, here, sink, 60*time.Second)
		proxy.BlackHole(false)
		await(t, "it listens", 60*time.Second, func() bool { return there.ListenError() == "" })
		degraded(t, here, false)
		comes(t, here, sink, 60*time.Second)
		// Once for each outage, and a slow machine may have more of them.
		said := regexp.MustCompile("level=WARN|degraded|LISTEN is back").FindAllString(log.String(), -1)
		if n := len(said) / 3; n < outage || !slices.Equal(said, slices.Repeat([]string{"level=WARN", "degraded", "LISTEN is back"}, n)) {
			t.Errorf("after outage %d it said %q:\n%s", outage, said, log.String())
		}
	}
	if least := slices.Min(noticed); least > 2*heartbeat+heartbeat/2 { // one may meet a slow moment
		t.Errorf("the lost connection was noticed after %v, want two heartbeats (%v) at most", noticed, 2*heartbeat)
	}
}

// A relay that waits for its broker and does not listen says what matters more.
func TestProblemIsToldBeforeDegraded(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	here := openAt(t, dsn, waypg.Config{})
	relaying(t, connect(t, bounced(t, dsn), waypg.Config{Notify: true}), &recorder{refuse: func(*waybill.Record) error { return waybill.ErrUnavailable }}, outbox.RelayConfig{})
	began := *degraded(t, here, true).Since
	put(t, here, outbox.Config{}, order{"k", 0})
	await(t, "the problem is told", 60*time.Second, func() bool {
		all, err := here.Relays(t.Context())
		return err == nil && len(all) == 1 && all[0].Problem != "" && all[0].Degraded == "" && all[0].Since.After(began)
	})
}

// What cannot be listened on is named, and messages flow.
func TestDeafnessIsExplained(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	here := openAt(t, dsn, waypg.Config{})
	for name, at := range map[string]struct {
		dsn  string
		cfg  waypg.Config
		want string
	}{
		"a pooler":           {bounced(t, dsn), waypg.Config{Notify: true}, "pooler"},
		"listen is a pooler": {dsn, waypg.Config{Listen: bounced(t, dsn)}, "pooler"},
		"another database":   {dsn, waypg.Config{Listen: testserver.Postgres(t)}, "leads to the database"},
		"nobody there":       {dsn, waypg.Config{Listen: "postgres://waybill:c4nary@127.0.0.1:1/x"}, "refused"},
	} {
		sink := &recorder{}
		var log lockedBuffer
		stop := relaying(t, connect(t, at.dsn, at.cfg), sink, outbox.RelayConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
		if got := degraded(t, here, true).Degraded; !strings.Contains(got, at.want) || strings.Contains(got+log.String(), "c4nary") {
			t.Errorf("%s: degraded is %q, want %q in it", name, got, at.want)
		}
		comes(t, here, sink, 60*time.Second)
		if n := listeners(t, here); n != 0 {
			t.Errorf("%s: %d sessions listen", name, n)
		}
		stop()
	}
}

func TestListenerOutlivesItsServer(t *testing.T) {
	t.Parallel()
	server := testserver.StartPostgres(t, nil)
	here := openAt(t, server.URL(), waypg.Config{Notify: true})
	there := connect(t, server.URL(), waypg.Config{Notify: true})
	sink := &recorder{}
	relaying(t, there, sink, hardly)
	comes(t, here, sink, 60*time.Second)
	for range 2 {
		await(t, "it listens", 60*time.Second, func() bool { return listeners(t, here) == 1 })
		server.Kill()
		await(t, "it does not listen", 60*time.Second, func() bool { return there.ListenError() != "" })
		server.Start()
		await(t, "it listens", 60*time.Second, func() bool { return there.ListenError() == "" })
		await(t, "pools have noticed", 60*time.Second, func() bool {
			_, err := here.Backlog(context.Background(), "default")
			return err == nil
		})
		comes(t, here, sink, 60*time.Second)
	}
}
