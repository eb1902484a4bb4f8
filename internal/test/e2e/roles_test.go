package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

// A relay that is killed or frozen is this test binary again.
const roleEnv = "WAYBILL_STACK_ROLE"

// A role is a relay or a worker in a separate process, which sends itself a signal at one exact
// place of its work, once.
type role struct {
	Kind             string
	Database, Broker string
	BatchBytes       int
	Patient          bool
	Place            string // empty means nowhere
	Signal           syscall.Signal
	Mended           string // the file whose existence ends a failure
}

// The places.
const (
	beforePublish = "just before its publish deadline, with nothing sent"
	beforeSettle  = "after the confirmations, before the rows are deleted"
	whileRowsCome = "while rows stream to it"
	inHandler     = "in a handler" // of a worker
	withExit      = "in a handler that calls os.Exit, of a worker with a store"
	withStrangers = "nowhere: a worker that fails on messages of other programs"
	withMended    = "nowhere: a worker that handles any message"
	withRetries   = "nowhere: a worker whose third message of each key bad-* fails until it is mended"
)

func play(text string) int {
	var r role
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		err = r.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (r role) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var once sync.Once
	strike := func(place string) {
		if place == r.Place {
			once.Do(func() {
				_ = syscall.Kill(os.Getpid(), r.Signal)
				time.Sleep(200 * time.Millisecond) // until it strikes the other threads, too
			})
		}
	}
	idle, config, heartbeat := quickIdle, quickRelay, quickHeartbeat
	if r.Patient {
		idle, config, heartbeat = 0, patientRelay, patientHeartbeat
	}
	on := kinds[slices.IndexFunc(kinds, func(k *kind) bool { return k.name == r.Kind })]
	db, err := on.open(ctx, r.Database, opening{idle, func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		_ = conn.(*net.TCPConn).SetReadBuffer(64 << 10) // so that the server has to wait for us
		return &slowConn{Conn: conn, strike: func() { strike(whileRowsCome) }}, nil
	}})
	if err != nil {
		return err
	}
	switch r.Place {
	case withRetries:
		return retrying(ctx, db, r)
	case withExit:
		return exiting(ctx, db, r)
	case withStrangers, withMended:
		return strangeWorker(ctx, db, r)
	case inHandler:
		return work(ctx, db, func() { strike(inHandler) })
	}
	p, err := wayamqp.NewPublisher(wayamqp.Config{URL: r.Broker, Exchange: transport, KeyHeader: true, Heartbeat: heartbeat})
	if err != nil {
		return err
	}
	config.BatchBytes = r.BatchBytes
	config.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	relay, err := outbox.NewRelay(hookedStore{db, func() { strike(beforeSettle) }}, hookedPublisher{p, func(ctx context.Context) {
		if r.Place == beforePublish {
			end, _ := ctx.Deadline()
			once.Do(func() {
				time.Sleep(time.Until(end) - 20*time.Millisecond)
				_ = syscall.Kill(os.Getpid(), r.Signal)
			})
		}
	}}, config)
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

// slowConn strikes while a claim reads large rows. A driver may read on while it closes.
type slowConn struct {
	net.Conn
	read   atomic.Int64
	strike func()
}

func (c *slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.read.Add(int64(n)) > 1<<20 {
		c.strike()
	}
	return n, err
}

// hookedStore calls before ahead of each Settle that deletes.
type hookedStore struct {
	database
	before func()
}

func (s hookedStore) Claim(ctx context.Context, transport string, part outbox.Part, limit outbox.ClaimLimit) (outbox.Claim, error) {
	c, err := s.database.Claim(ctx, transport, part, limit)
	return hookedClaim{c, s.before}, err
}

type hookedClaim struct {
	outbox.Claim
	before func()
}

func (c hookedClaim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if len(published) > 0 {
		c.before()
	}
	return c.Claim.Settle(ctx, published, failed)
}

// hookedPublisher calls before ahead of each Publish.
type hookedPublisher struct {
	*wayamqp.Publisher
	before func(ctx context.Context)
}

func (p hookedPublisher) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	p.before(ctx)
	p.Publisher.Publish(ctx, items, results)
}

// A process is a relay in a separate process.
type process struct {
	tb   testing.TB
	cmd  *exec.Cmd
	log  *strings.Builder
	done chan struct{}
}

// start starts a relay as a process, which ends with the test.
func (s *stack) start(r role) *process {
	s.Helper()
	r.Kind, r.Database, r.Broker = s.on.name, s.database, s.broker
	text, err := json.Marshal(r)
	s.must(err)
	p := &process{tb: s, cmd: exec.Command(os.Args[0]), log: &strings.Builder{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleEnv+"="+string(text))
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	s.must(p.cmd.Start())
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	s.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if s.Failed() {
			s.Logf("relay %d:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

// frozen reports whether the process was stopped by a signal.
func (p *process) frozen() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	return err == nil && strings.Contains(string(text), ") T ")
}

func (p *process) signal(sig os.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.tb.Fatalf("%v: %v", sig, err)
	}
}

// await waits for the end of the process.
func (p *process) await(limit time.Duration) {
	p.tb.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.tb.Fatalf("the process has not ended within %v", limit)
	}
}
