package e2e

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

func TestFrozenRelayIsReplacedAndAddsAtMostDuplicates(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		for _, place := range []string{"", beforePublish, beforeSettle, whileRowsCome} {
			name := place
			if name == "" {
				name = "in the middle of its work"
			}
			t.Run(name, func(t *testing.T) { t.Parallel(); freeze(t, on, place) })
		}
	})
}

func freeze(t *testing.T, on *kind, place string) {
	s := on.stack(t)
	w := s.watch(everyone)
	keys := keyNames("k", 40)
	first := 3
	r := role{Place: place, Signal: syscall.SIGSTOP}
	switch place {
	case "":
		first = 50 // so that it has rows in flight
	case whileRowsCome:
		s.pad = strings.Repeat("x", 400<<10) // 40 x 3 of them fill every socket between
		r.BatchBytes = 64 << 20
	}
	s.dispatch(keys, first)
	s.pad = ""
	p := s.start(r)
	if place == "" {
		w.await(10, patience)
		p.signal(syscall.SIGSTOP)
	}
	s.eventually(patience, "the relay is frozen", p.frozen)
	frozen := time.Now()
	var then string
	s.must(s.one(on.now, &then))
	if s.left() == 0 {
		t.Fatal("it froze with nothing in flight")
	}
	s.quickRelay()
	// Messages that are dispatched meanwhile, on the same keys.
	stop := s.keepDispatching(2, 50*time.Millisecond, keys)
	const idle = quickIdle
	var open sql.NullString // late
	for on.openSince(s, then) > 0 {
		if time.Since(frozen) > idle+on.grace/2 && !open.Valid {
			s.must(s.one("SELECT max("+on.says+") "+on.began[strings.Index(on.began, "FROM"):], &open, then))
		}
		if time.Since(frozen) > patience {
			s.Fatalf("a transaction from before is still open: %s", open.String)
		}
		time.Sleep(10 * time.Millisecond)
	}
	took := time.Since(frozen)
	t.Logf("taken over after %v", took.Round(10*time.Millisecond))
	if took > idle+on.grace {
		t.Errorf("its rows were free after %v, want the idle timeout of %v and %v at most; %s was open", took, idle, on.grace, open.String)
	}
	s.eventually(patience, "the other relay has published its rows", func() bool {
		return s.count("SELECT count(*) FROM waybill_outbox WHERE id BETWEEN 1 AND ?", first*len(keys)) == 0
	})
	time.Sleep(time.Until(frozen.Add(2 * idle)))
	before := w.messages()
	p.signal(syscall.SIGCONT)
	time.Sleep(2 * time.Second)
	stop()
	v := w.judge(patience)
	t.Logf("%v; %d messages came before it went on", v, before)
	s.eventually(patience, "no row is left", func() bool { return s.left() == 0 })
	p.signal(syscall.SIGTERM)
	p.await(patience)
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the thawed relay ended with %d, want an orderly stop", code)
	}
}

// A relay that is killed with rows in flight loses its locks with its connection,
// long before any timeout.
func TestKilledRelayIsReplacedAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		w := s.watch(everyone)
		var all []time.Duration
		for trial := 0; len(all) < 5; trial++ {
			if trial == 15 {
				t.Fatal("nothing was in flight at most of the kills")
			}
			keys := keyNames(fmt.Sprint("k", trial), 40)
			s.dispatch(keys, 3)
			p := s.start(role{Patient: true, Place: beforeSettle, Signal: syscall.SIGSTOP})
			s.eventually(patience, "the relay has stopped with rows in flight", p.frozen)
			other := s.patientRelay()
			free := besides(keys, fmt.Sprint("free", trial))
			s.dispatch([]string{free}, 1)
			s.eventually(patience, "the other relay is at work", func() bool { return w.of(free) > 0 })
			held := func() int {
				return s.count("SELECT count(*) FROM waybill_outbox WHERE partition_key LIKE ?", fmt.Sprint("k", trial, "-%"))
			}
			inFlight := held() > 0 // else the other one came after the idle timeout
			killed := time.Now()
			p.signal(syscall.SIGKILL)
			s.eventually(patience, "the other relay has published its rows", func() bool { return held() == 0 })
			if inFlight {
				all = append(all, time.Since(killed).Round(time.Millisecond))
			}
			other.end()
		}
		slices.Sort(all)
		t.Logf("taken over after %v", all)
		if median, limit := all[len(all)/2], 3*time.Second; median > limit {
			t.Errorf("the median is %v, want less than a second, and %v on a machine that is busy", median, limit)
		}
		t.Log(w.judge(patience))
	})
}

// besides returns a key in a bucket that none of keys is in.
func besides(keys []string, prefix string) string {
	for i := 0; ; i++ {
		key := fmt.Sprint(prefix, "-", i)
		if !slices.ContainsFunc(keys, func(k string) bool { return outbox.Bucket(k, 64) == outbox.Bucket(key, 64) }) {
			return key
		}
	}
}

// looking is held during a query of the open transactions: MariaDB answers from a
// cache for as long as the queries are less than 100 ms apart.
var looking sync.Mutex

// openSince counts the transactions that began by then.
func (on *kind) openSince(s *stack, then string) int {
	s.Helper()
	looking.Lock()
	defer looking.Unlock()
	time.Sleep(on.pause)
	return s.count(on.began, then)
}

func TestConfigurationThatBreaksTheFenceIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		db := s.openWith(s.database, quickIdle-time.Second)
		p := s.publisher(wayamqp.Config{})
		if _, err := outbox.NewRelay(db, p, quickRelay); err == nil || !strings.Contains(err.Error(), "raise the idle timeout to 6s") {
			t.Errorf("NewRelay = %v, want that the idle timeout is too short", err)
		}
		if _, err := outbox.NewRelay(s.db, p, quickRelay); err != nil {
			t.Errorf("NewRelay = %v with an idle timeout that is just long enough", err)
		}
	})
}
