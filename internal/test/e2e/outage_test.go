package e2e

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
)

// The server may lose acknowledged transactions, as far as its settings let it, but
// none that dispatched a message.
func TestNothingIsSentThatAKilledDatabaseForgets(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		kills := 2
		if *long {
			kills = 8
		}
		server := on.start(t)
		s := on.stackAt(t, server.URL(), testserver.RabbitMQ(t))
		if on == &postgresKind {
			s.forgets(server)
		}
		w := s.watch(everyone)
		s.patientRelay()
		s.patientRelay()
		stop := s.keepDispatching(6, 5*time.Millisecond, keyNames("k", 20))
		for range kills {
			w.await(w.messages()+100, patience)
			server.Kill()
			server.Start()
		}
		w.await(w.messages()+100, patience)
		failed := stop()
		t.Logf("%d kills, %d transactions failed: %v", kills, failed, w.judge(patience))
	})
}

// forgets fails the test unless the server loses acknowledged transactions when it
// is killed. With those settings it would lose dispatched messages too.
func (s *stack) forgets(server *testserver.Server) {
	s.Helper()
	s.exec("CREATE TABLE forgotten (n bigint PRIMARY KEY)")
	s.exec("CHECKPOINT") // or it forgets the table as well
	const acknowledged = 300
	for n := range acknowledged {
		s.exec("INSERT INTO forgotten VALUES (?)", n)
	}
	server.Kill()
	server.Start()
	kept := 0
	s.eventually(patience, "the database answers", func() bool {
		return s.one("SELECT count(*) FROM forgotten", &kept) == nil
	})
	s.Logf("%d rows of others forgotten", acknowledged-kept)
	if kept == acknowledged {
		s.Error("the server forgets nothing: this proves nothing")
	}
}

func TestOutagesAreRiddenOut(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		var server, rabbit *testserver.Server
		var starts sync.WaitGroup
		starts.Go(func() { server = on.start(t) })
		starts.Go(func() { rabbit = testserver.StartRabbitMQ(t, nil) })
		starts.Wait()
		s := on.stackAt(t, server.URL(), rabbit.URL())
		rabbit.Settle() // or its binding may be gone when it comes back
		relays := []*running{s.patientRelay(), s.quickRelay()}
		stop := s.keepDispatching(4, 20*time.Millisecond, keyNames("k", 20))
		problems := func() (with, all int) {
			found, err := s.db.Relays(t.Context())
			s.must(err)
			for _, r := range found {
				if r.Problem != "" {
					with++
				}
			}
			return with, len(found)
		}
		said := func(want int) func() bool {
			return func() bool { with, all := problems(); return all == 2 && with == want }
		}
		moving := func(limit time.Duration, what string) {
			t.Helper()
			// All rows up to the newest one now are published.
			newest := s.count("SELECT coalesce(max(id), 0) FROM waybill_outbox")
			took := s.eventually(limit, what, func() bool {
				return s.count("SELECT count(*) FROM waybill_outbox WHERE id BETWEEN 1 AND ?", newest) == 0
			})
			t.Logf("%s: after %v", what, took.Round(10*time.Millisecond))
		}
		s.eventually(patience, "both relays report that all is well", said(0))

		rabbit.Kill()
		took := s.eventually(patience, "both relays report a problem", said(2))
		t.Logf("the outage of the broker showed after %v", took.Round(10*time.Millisecond))
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if with, all := problems(); with != 2 || all != 2 {
				t.Fatalf("%d of %d relays report a problem during the outage, want both", with, all)
			}
		}
		rabbit.Start()
		moving(90*time.Second, "after the broker's outage relays publish")
		s.eventually(patience, "both relays report that it is over", said(0))

		server.Kill()
		time.Sleep(2 * time.Second)
		server.Start()
		moving(90*time.Second, "after the database's outage relays publish")

		failed := stop()
		s.look()
		v := s.watch(everyone).judge(patience)
		t.Logf("%d transactions failed: %v", failed, v)
		for _, r := range relays {
			r.runs()
		}
		if got := s.blocked(); len(got) != 0 {
			t.Errorf("blocked: %+v, want that an outage is nobody's failure", got)
		}
	})
}

func TestRelaysComeAndGoWithoutDuplicates(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		w := s.watch(everyone)
		s.start(role{Patient: true})
		s.start(role{Patient: true})
		stop := s.keepDispatching(6, 4*time.Millisecond, keyNames("k", 50))
		w.await(100, patience)
		var more []*process
		for range 4 {
			more = append(more, s.start(role{Patient: true}))
		}
		s.eventually(patience, "six relays run", func() bool { return s.count("SELECT count(*) FROM waybill_workers") == 6 })
		w.await(w.messages()+500, patience)
		for _, p := range more {
			p.signal(syscall.SIGTERM)
			p.await(patience)
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("a relay ended with %d, want an orderly stop", code)
			}
		}
		if got := s.count("SELECT count(*) FROM waybill_workers"); got != 2 {
			t.Errorf("%d relays are known, want 2", got)
		}
		w.await(w.messages()+200, patience)
		stop()
		v := w.judge(patience)
		t.Log(v)
		if v.Duplicates != 0 {
			t.Errorf("%v, want no duplicates", v)
		}
	})
}

func TestMessagesFromSQLClientsKeepTheirOrderBesideThoseFromGo(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		w := s.watch(everyone)
		keys := keyNames("k", 25)
		const sessions, rounds = 4, 50
		s.patientRelay()
		s.patientRelay()
		stop := s.keepDispatching(4, 10*time.Millisecond, keys)
		var wg sync.WaitGroup
		for range sessions {
			wg.Go(func() {
				if err := on.client(s, keys, rounds); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if failed := stop(); failed > 0 {
			t.Errorf("%d transactions of Go failed beside the clients", failed)
		}
		v := w.judge(patience)
		t.Log(v)
		if clients := 2 * sessions * rounds * len(keys); v.Committed <= clients || v.Duplicates != 0 {
			t.Errorf("%v, want more than the %d of the clients, and no duplicates", v, clients)
		}
	})
}

// A transaction of the application's own that dispatches and stays open has its
// id long before those of others that commit first.
func TestCommitsThatComeLateArriveInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		w := s.watch(everyone)
		s.patientRelay()
		s.patientRelay()
		var slow, quick []string // all in a few buckets
		for i := 0; len(quick) < 12; i++ {
			switch key := fmt.Sprint("k-", i); {
			case outbox.Bucket(key, 64) > 2:
			case len(slow) < 4:
				slow = append(slow, key)
			default:
				quick = append(quick, key)
			}
		}
		s.types.AllowRaw(counted{}.MessageName())
		stop := s.keepDispatching(4, 2*time.Millisecond, quick)
		var wg sync.WaitGroup
		const rounds = 40
		for _, key := range slow {
			wg.Go(func() {
				for range rounds {
					err := s.app.own(t.Context(), func(ctx context.Context, u unit) error {
						err := s.write(ctx, u, []string{key}, 1, []string{counted{}.MessageName()})
						time.Sleep(20 * time.Millisecond)
						return err
					})
					if err != nil {
						t.Errorf("%s: %v", key, err)
					}
				}
			})
		}
		wg.Wait()
		if failed := stop(); failed > 0 {
			t.Errorf("%d transactions failed", failed)
		}
		v := w.judge(patience)
		t.Log(v)
		if v.Committed < rounds*(len(slow)+1) || v.Duplicates != 0 {
			t.Errorf("%v, want more than the %d that came late, and no duplicates", v, rounds*len(slow))
		}
	})
}
