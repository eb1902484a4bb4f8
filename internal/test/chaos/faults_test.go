//go:build chaos

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/test/crashpoint"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
)

// A fault is one thing that goes wrong, so many times in a round.
type fault struct {
	name   string
	times  int
	strike func(c *campaign) bool
}

// processFaults strike while the servers are well, so that it can be measured
// how long a relay is missed.
var processFaults = []fault{
	{"kill a relay with claims", 3, func(c *campaign) bool { return c.one("relay", func(m *member) bool { return m.kill(true, "") }) }},
	{"kill a relay", 1, func(c *campaign) bool { return c.one("relay", func(m *member) bool { return m.kill(false, "") }) }},
	{"kill a worker", 1, func(c *campaign) bool { return c.one("worker", func(m *member) bool { return m.kill(false, "") }) }},
	{"kill a dispatcher", 2, func(c *campaign) bool { return c.one("dispatch", func(m *member) bool { return m.kill(false, "") }) }},
	{"freeze a relay with claims", 1, func(c *campaign) bool { return c.freeze("relay", true) }},
	{"freeze a worker in an inbox transaction", 1, func(c *campaign) bool { return c.freeze("worker", true) }},
	{"freeze a dispatcher", 1, func(c *campaign) bool { return c.freeze("dispatch", false) }},
}

// serverFaults strike everybody.
var serverFaults = []fault{
	{"reset all connections to the database", 2, func(c *campaign) bool { return c.reset(c.toServer) }},
	{"reset all connections to the broker", 2, func(c *campaign) bool { return c.reset(c.toRabbit) }},
	{"black hole before the database", 1, func(c *campaign) bool { return c.hole(c.toServer) }},
	{"black hole before the broker", 1, func(c *campaign) bool { return c.hole(c.toRabbit) }},
	{"kill the database", 1, func(c *campaign) bool { return c.restart(c.server) }},
	{"kill the broker", 1, func(c *campaign) bool { return c.restart(c.rabbit) }},
}

// round has everything go wrong at least once: first the processes, and when the
// frozen ones are back, the servers.
func (c *campaign) round() {
	c.t.Helper()
	c.say(fmt.Sprintf("%d messages wait in the outbox", c.pending()))
	var frozen sync.WaitGroup
	c.frozen = &frozen
	c.fleet.measure(true)
	c.strike(processFaults, c.crashes("relay"))
	frozen.Wait()
	c.awaitCrashes()
	c.fleet.measure(false)
	c.say(fmt.Sprintf("those that were frozen are back, %d messages wait in the outbox", c.pending()))
	c.strike(serverFaults, c.crashes("dispatch"), c.crashes("worker"))
	c.awaitCrashes()
	c.awaitEffect()
}

// crashes have processes of a role die at each of its points.
func (c *campaign) crashes(role string) (all []fault) {
	for _, point := range points(c.stored) {
		if strings.HasPrefix(point, role) {
			all = append(all, fault{point, 1, func(c *campaign) bool { return c.arm(point) }})
		}
	}
	return all
}

// strike has faults strike in a random order.
func (c *campaign) strike(faults ...[]fault) {
	c.t.Helper()
	var deck []fault
	for _, f := range slices.Concat(faults...) {
		for range f.times {
			deck = append(deck, f)
		}
	}
	c.dice.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	for _, f := range deck {
		if c.t.Failed() {
			return
		}
		c.say(f.name)
		if !f.strike(c) {
			c.t.Errorf("%s: it could not be done", f.name)
		}
		c.faults[f.name]++
		time.Sleep(c.plan.pause/2 + time.Duration(c.dice.Int64N(int64(c.plan.pause))))
	}
}

// one tries members of a role, in a random order, until do succeeds with one.
func (c *campaign) one(role string, do func(m *member) bool) bool {
	for start := time.Now(); time.Since(start) < 20*time.Second; time.Sleep(5 * time.Millisecond) {
		members := c.fleet.of(role)
		for _, i := range c.dice.Perm(len(members)) {
			if do(members[i]) {
				return true
			}
		}
	}
	return false
}

// frozenFor is beyond every timeout.
const frozenFor = idle + 2*time.Second

// freeze stops a process for longer than every timeout, while the others continue.
func (c *campaign) freeze(role string, busy bool) bool {
	return c.one(role, func(m *member) bool {
		thaw := m.freeze(busy)
		if thaw != nil {
			c.frozen.Go(func() { time.Sleep(frozenFor); thaw() })
		}
		return thaw != nil
	})
}

// arm has a process die at a point: the next one that comes there.
func (c *campaign) arm(point string) bool {
	c.wanted[point] = c.fleet.crashes()[point] + 1
	return c.one(roleAt(point), func(m *member) bool { return m.kill(false, c.visit(point)) })
}

// visit is a point, and how many times a process comes to it before it dies.
func (c *campaign) visit(point string) string { return fmt.Sprintf("%s,%d", point, 1+c.dice.IntN(10)) }

func roleAt(point string) string {
	role, _, _ := strings.Cut(point, "-")
	return role
}

// awaitCrashes waits until all processes that are to crash have done so. Only one
// worker at a time is given messages: all are to die at the point, and a replacement
// for one that died elsewhere, too.
func (c *campaign) awaitCrashes() {
	c.await("processes crash where they are to", 90*time.Second, func() bool {
		hit, all := c.fleet.crashes(), true
		for _, point := range crashpoint.Points {
			if hit[point] >= c.wanted[point] {
				continue
			}
			all = false
			if roleAt(point) != "worker" {
				continue
			}
			for _, m := range c.fleet.of("worker") {
				m.kill(false, c.visit(point)) // one that is to crash is left alone
			}
		}
		return all
	})
}

// reset ends all connections, once there are any.
func (c *campaign) reset(proxy *faultproxy.Proxy) bool {
	c.await("a connection to reset", 20*time.Second, func() bool { return proxy.Reset() > 0 })
	return true
}

// hole lets nothing pass for longer than every timeout but the idle one.
func (c *campaign) hole(proxy *faultproxy.Proxy) bool {
	proxy.BlackHole(true)
	time.Sleep(3*heartbeat + time.Second)
	proxy.BlackHole(false)
	return true
}

// restart kills a server, starts it again and waits for the next effect.
func (c *campaign) restart(s *testserver.Server) bool {
	c.t.Helper()
	s.Kill()
	time.Sleep(200 * time.Millisecond)
	s.Start()
	start := time.Now()
	c.awaitEffect()
	c.slowest = max(c.slowest, time.Since(start))
	return true
}
