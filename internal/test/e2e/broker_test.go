package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

func TestBrokerThatStopsReadingHoldsUpNothingForLong(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		for _, size := range []int{10, 64 << 10} { // it fits into the sockets' buffers, or not
			t.Run(fmt.Sprint(size), func(t *testing.T) {
				t.Parallel()
				s := on.stack(t)
				s.pad = strings.Repeat("x", size)
				w := s.watch(everyone)
				proxy, address := s.through(s.broker)
				cfg := quickRelay
				cfg.BatchBytes = 32 << 20
				r := s.relay(s.open(s.database), s.publisher(wayamqp.Config{URL: address}), cfg)
				keys := keyNames("k", 100)
				s.dispatch(keys, 1)
				w.await(100, patience)

				proxy.BlackHole(true)
				s.dispatch(keys, 1)
				time.Sleep(300 * time.Millisecond) // until the relay has them in flight
				begin := time.Now()
				other := s.quickRelay()
				w.await(200, patience)
				took := time.Since(begin)
				t.Logf("another relay delivered the rows after %v", took.Round(time.Millisecond))
				if limit := 20 * time.Second; took > limit {
					t.Errorf("the rows came back after %v, want %v at most", took, limit)
				}
				other.end()

				s.dispatch(keys, 1)
				time.Sleep(300 * time.Millisecond)
				if took := r.end(); took > 2*quickRelay.PublishDeadline+8*time.Second { // a busy machine
					t.Errorf("Run took %v to stop, want about the publish deadline of %v", took, quickRelay.PublishDeadline)
				} else {
					t.Logf("Run stopped after %v", took.Round(time.Millisecond))
				}
				if got := s.left(); got != len(keys) {
					t.Errorf("%d rows are left, want %d", got, len(keys))
				}
				proxy.BlackHole(false)
				s.relay(s.open(s.database), s.publisher(wayamqp.Config{URL: address}), cfg)
				t.Log(w.judge(patience))
				if got := proxy.Counts().BlackHoles; got != 1 {
					t.Errorf("%d black holes, want 1", got)
				}
				if got := s.blocked(); len(got) != 0 {
					t.Errorf("blocked: %+v, want that an outage is nobody's failure", got)
				}
			})
		}
	})
}

// A stalling publisher delays each batch that has a message of key, until it is
// released.
type stalling struct {
	*wayamqp.Publisher
	key     string
	has     chan struct{} // closed when it has some
	release chan struct{}
	once    sync.Once
}

func (p *stalling) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	for _, item := range items {
		if item.Record.Key == p.key {
			p.once.Do(func() { close(p.has) })
			select {
			case <-p.release:
			case <-ctx.Done():
			}
			break
		}
	}
	p.Publisher.Publish(ctx, items, results)
}

func TestKeyInFlightIsNobodyElses(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		w := s.watch(everyone)
		const key = "K"
		stuck := &stalling{Publisher: s.publisher(wayamqp.Config{Heartbeat: patientHeartbeat}), key: key, has: make(chan struct{}), release: make(chan struct{})}
		s.dispatch([]string{key}, 5)
		s.relay(s.openWith(s.database, 0), stuck, patientRelay)
		select {
		case <-stuck.has:
		case <-time.After(patience):
			t.Fatal("the stalling relay has nothing")
		}
		for range 3 {
			s.patientRelay()
		}
		var others []string // a bucket is published by one relay at a time, with all its keys
		for _, k := range keyNames("other", 300) {
			if outbox.Bucket(k, 64) != outbox.Bucket(key, 64) {
				others = append(others, k)
			}
		}
		s.dispatch(append(others, key), 3)
		begin := time.Now()
		w.await(3*len(others), patience)
		t.Logf("everything else came after %v", time.Since(begin).Round(time.Millisecond))
		if got := w.of(key); got != 0 {
			t.Errorf("%d messages of the key in flight came from other relays", got)
		}
		close(stuck.release)
		if v := w.judge(patience); v.Duplicates != 0 {
			t.Errorf("%v, want no duplicates", v)
		}
	})
}

func TestMemoryAlarmPausesPublishingAndIsNobodysFailure(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		server := testserver.StartRabbitMQ(t, nil)
		s := on.stackAt(t, on.fresh(t), server.URL())
		w := s.watch(everyone)
		r := s.quickRelay()
		keys := keyNames("k", 50)
		s.dispatch(keys, 2)
		w.await(100, patience)

		limit := s.memoryLimit(server.API())
		limit("1MB")
		s.dispatch(keys, 2)
		time.Sleep(3 * time.Second) // three publish deadlines
		if got := w.messages(); got != 100 {
			t.Errorf("%d messages came during the alarm, want none", got-100)
		}
		if got := s.blocked(); len(got) != 0 {
			t.Errorf("blocked: %+v, want that an alarm is nobody's failure", got)
		}
		s.eventually(patience, "the relay says that the broker blocks publishers", func() bool {
			relays, err := s.db.Relays(t.Context())
			s.must(err)
			return len(relays) == 1 && strings.Contains(relays[0].Problem, "blocks publishers")
		})
		limit("100GB")
		t.Log(w.judge(patience))
		r.runs()
		s.eventually(patience, "nothing is blocked or left", func() bool { return len(s.blocked()) == 0 && s.left() == 0 })
	})
}

// memoryLimit returns a function that sets the memory limit above which the test's
// own broker raises the alarm. The management plugin tells where the broker is, but
// cannot set the limit.
func (s *stack) memoryLimit(api string) (set func(limit string)) {
	s.Helper()
	var nodes []struct {
		Name   string   `json:"name"`
		PID    string   `json:"os_pid"`
		Config []string `json:"config_files"`
	}
	s.eventually(patience, "the broker tells about itself", func() bool {
		s.must(json.Unmarshal(management(s, api, "GET", "/api/nodes", ""), &nodes))
		return len(nodes) == 1 && nodes[0].PID != "" && len(nodes[0].Config) > 0
	})
	environ, err := os.ReadFile("/proc/" + nodes[0].PID + "/environ")
	s.must(err)
	env := append(os.Environ(), "HOME="+filepath.Dir(nodes[0].Config[len(nodes[0].Config)-1])) // where its cookie is
	for v := range strings.SplitSeq(string(environ), "\x00") {
		if strings.HasPrefix(v, "ERL_EPMD_") {
			env = append(env, v)
		}
	}
	return func(limit string) {
		s.Helper()
		cmd := exec.Command("/usr/lib/rabbitmq/bin/rabbitmqctl", "-n", nodes[0].Name, "set_vm_memory_high_watermark", "absolute", limit)
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			s.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
}
