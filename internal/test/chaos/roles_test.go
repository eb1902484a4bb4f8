//go:build chaos

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/worker"
)

// A process of the campaign is this test binary again, in a role.
const roleEnv = "WAYBILL_CHAOS_ROLE"

const transport = "events"

// A role is the configuration of a process.
type role struct {
	Role  string // dispatch, relay or worker
	Name  string // of this process alone
	Even  bool   // one of the half that does it the other way
	Quick bool   // a relay or worker with timeouts of seconds

	Kind, Database, Broker string
	Dir                    string // for its journal or claims
	Keys                   int
	Store                  bool          // of a worker: the database keeps what failed, and some handlers fail
	Pace                   time.Duration // of a dispatcher
	Seed                   uint64
}

// The timeouts of a quick relay or worker. It is replaced within idle of being frozen.
const (
	idle      = 6 * time.Second
	deadline  = time.Second
	heartbeat = time.Second
)

// A relay has up to so many batches in flight, of up to so many messages each.
const batches, batch = 2, 50

// counted is the n-th thing that happened to a key, in one attempt at a
// transaction.
type counted struct {
	Key     string
	N       int
	Attempt string
}

func (counted) MessageName() string { return "key.counted" }

func (m counted) PartitionKey() string {
	if free(m.Key) {
		return ""
	}
	return m.Key
}

// free reports whether the messages of a key have no order.
func free(key string) bool { return strings.HasPrefix(key, "free-") }

// keyNames returns n keys, five to a bucket, and some whose messages have no
// order.
func keyNames(n int) []string {
	names := make([]string, 0, n+n/10)
	for i := 0; len(names) < n; i++ {
		if key := fmt.Sprintf("key-%03d", i); outbox.Bucket(key, outbox.DefaultBuckets) < n/5 {
			names = append(names, key)
		}
	}
	for i := range n / 10 {
		names = append(names, fmt.Sprintf("free-%03d", i))
	}
	return names
}

// play runs a role until SIGTERM and returns the exit code.
func play(text string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // it must not outlive a campaign that was killed
		for parent := os.Getppid(); os.Getppid() == parent; time.Sleep(time.Second) {
		}
		os.Exit(1)
	}()
	var r role
	err := json.Unmarshal([]byte(text), &r)
	for err == nil {
		var db service
		if db, err = kindOf(r.Kind).open(ctx, r.Database, r.idle()); err == nil {
			err = map[string]func(context.Context, service) error{"dispatch": r.dispatch, "relay": r.relay, "worker": r.work}[r.Role](ctx, db)
			break
		}
		if ctx.Err() != nil {
			return 0
		}
		// A process that starts while its database is away would be started again.
		fmt.Fprintln(os.Stderr, "open:", err)
		time.Sleep(100 * time.Millisecond)
		err = nil
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", r.Name, err)
		return 1
	}
	return 0
}

// idle is the database's timeout; zero means its default.
func (r role) idle() time.Duration {
	if r.Quick {
		return idle
	}
	return 0
}

// dispatch is an application that counts keys up, in one transaction after
// another, and dispatches the numbers. Its journal records the attempts and
// their outcomes.
func (r role) dispatch(ctx context.Context, db service) error {
	journal, err := os.OpenFile(filepath.Join(r.Dir, r.Name+journalEnd), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	unit, own, err := db.application()
	for errors.Is(err, waybill.ErrUnavailable) && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		unit, own, err = db.application()
	}
	if err != nil {
		return err
	}
	hash := fnv.New64()
	_, _ = hash.Write([]byte(r.Name))
	d := dispatcher{unit: unit, own: own, keys: keyNames(r.Keys), dice: rand.New(rand.NewPCG(r.Seed, hash.Sum64()))}
	tick := time.NewTicker(r.Pace)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		attempt := fmt.Sprintf("%s/%d", r.Name, n)
		if err := note(journal, intent, attempt); err != nil {
			return err
		}
		outcome := outcomeOf(d.try(context.WithoutCancel(ctx), attempt))
		if err := note(journal, outcome, attempt); err != nil {
			return err
		}
	}
}

// The entries of a journal.
const (
	intent     = "intent"
	committed  = "committed"
	rolledBack = "rolled-back"
	unknown    = "unknown"

	journalEnd = ".journal"
)

func note(journal *os.File, entry, attempt string) error {
	_, err := fmt.Fprintln(journal, entry, attempt, time.Now().UnixMicro())
	return errors.Join(err, journal.Sync())
}

func outcomeOf(err error) string {
	switch {
	case err == nil:
		return committed
	case errors.Is(err, waybill.ErrCommitUnknown):
		return unknown
	}
	return rolledBack
}

type dispatcher struct {
	unit, own transactor
	keys      []string
	dice      *rand.Rand
}

var errChanged = errors.New("changed its mind")

// try makes one attempt: one to three keys are counted up under their rows'
// locks, in a unit of work or in a transaction that stays open for a while after
// it has dispatched. Some are rolled back.
func (d *dispatcher) try(ctx context.Context, attempt string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var keys []string
	for range 1 + d.dice.IntN(3)*d.dice.IntN(2) {
		keys = append(keys, d.keys[d.dice.IntN(len(d.keys))])
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	run, linger, rollBack := d.unit, time.Duration(0), d.dice.IntN(20) == 0
	if d.dice.IntN(10) < 3 {
		run, linger = d.own, time.Duration(d.dice.IntN(40))*time.Millisecond
	}
	return run(ctx, func(ctx context.Context, tx tx, dispatch dispatch) error {
		msgs := make([]any, len(keys))
		for i, key := range keys {
			n, err := tx.number(ctx, "SELECT n FROM counts WHERE k = ? FOR UPDATE", key)
			if err != nil {
				return err
			}
			if err := tx.exec(ctx, "UPDATE counts SET n = ? WHERE k = ?", n+1, key); err != nil {
				return err
			}
			msgs[i] = counted{key, n + 1, attempt}
		}
		ids, err := dispatch(ctx, msgs...)
		if err != nil {
			return err
		}
		for i, id := range ids {
			m := msgs[i].(counted)
			if err := tx.exec(ctx, "INSERT INTO committed (k, n, message_id, attempt) VALUES (?, ?, ?, ?)", m.Key, m.N, id.String(), attempt); err != nil {
				return err
			}
		}
		time.Sleep(linger)
		if rollBack {
			return errChanged
		}
		return nil
	})
}

// relay is outbox.Relay with a record of its claims in flight, and with its name and
// the time in each message.
func (r role) relay(ctx context.Context, db service) error {
	claims, err := os.OpenFile(filepath.Join(r.Dir, r.Name+claimsEnd), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cfg := outbox.RelayConfig{Transport: transport, Batch: batch, Workers: batches, Pipelined: r.Even, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Retry: waybill.Backoff{Delay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}}
	to := wayamqp.Config{URL: r.Broker, Exchange: transport, KeyHeader: true}
	if r.Quick {
		cfg.PublishDeadline, to.Heartbeat = deadline, heartbeat
	}
	p, err := wayamqp.NewPublisher(to)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	relay, err := outbox.NewRelay(&openStore{Store: db, claims: claims}, signing{p, r.Name}, cfg)
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}

const claimsEnd = ".claims"

// openStore writes down each claim with rows, and its end.
type openStore struct {
	outbox.Store
	claims *os.File
	count  atomic.Int64
}

func (s *openStore) Claim(ctx context.Context, transport string, part outbox.Part, limit outbox.ClaimLimit) (outbox.Claim, error) {
	c, err := s.Store.Claim(ctx, transport, part, limit)
	if err != nil || len(c.Rows()) == 0 {
		return c, err
	}
	keys := make([]string, 0, len(c.Rows()))
	for _, row := range c.Rows() {
		keys = append(keys, row.Record.Key)
	}
	slices.Sort(keys)
	n := s.count.Add(1)
	_, _ = fmt.Fprintln(s.claims, "claim", n, time.Now().UnixMicro(), strings.Join(slices.Compact(keys), ","))
	return &openClaim{c, s, n}, nil
}

type openClaim struct {
	outbox.Claim
	store *openStore
	n     int64
}

func (c *openClaim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	err := c.Claim.Settle(ctx, published, failed)
	_, _ = fmt.Fprintln(c.store.claims, "settled", c.n)
	return err
}

// held returns the keys that a relay or worker has in flight, with the time of their claim.
func held(dir, relay string) map[string]int64 {
	text, _ := os.ReadFile(filepath.Join(dir, relay+claimsEnd)) // one that never claimed has none
	open := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		switch fields := strings.Fields(line); {
		case len(fields) == 2:
			delete(open, fields[1])
		case len(fields) == 4: // not one of messages without a key alone
			open[fields[1]] = fields[2:]
		}
	}
	keys := map[string]int64{}
	for _, fields := range open {
		since, _ := strconv.ParseInt(fields[0], 10, 64)
		for _, key := range strings.Split(fields[1], ",") {
			if key != "" {
				keys[key] = since
			}
		}
	}
	return keys
}

// signing is a publisher that adds its name and the time to each message.
type signing struct {
	*wayamqp.Publisher
	name string
}

const relayHeader, sentHeader = "chaos-relay", "chaos-sent"

func (p signing) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	now := strconv.FormatInt(time.Now().UnixMicro(), 10)
	for _, item := range items {
		if item.Record.Headers == nil {
			item.Record.Headers = map[string]string{}
		}
		item.Record.Headers[relayHeader], item.Record.Headers[sentHeader] = p.name, now
	}
	p.Publisher.Publish(ctx, items, results)
}

// Isolated implements outbox.Publisher: retries are signed, too.
func (p signing) Isolated() outbox.Publisher {
	return signing{p.Publisher.Isolated().(*wayamqp.Publisher), p.name}
}

// work is a consumer whose handler writes one row, with group commit or without. It
// records its handlers in flight as a relay does its claims.
func (r role) work(ctx context.Context, db service) error {
	claims, err := os.OpenFile(filepath.Join(r.Dir, r.Name+claimsEnd), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var handlers atomic.Int64
	consumer, err := wayamqp.NewConsumer(wayamqp.Config{URL: r.Broker, Queue: transport, Prefetch: 100, Heartbeat: heartbeat})
	if err != nil {
		return err
	}
	defer func() { _ = consumer.Close() }()
	bus := waybill.NewBus("chaos")
	var opts []inbox.Option
	if r.Even {
		opts = append(opts, inbox.Group(8))
	}
	db.handle(bus, func(ctx context.Context, tx tx, m counted) error {
		env := waybill.EnvelopeFrom(ctx)
		id, _ := waybill.Last[waybill.MessageID](env)
		before, _ := waybill.Last[waybill.Redelivery](env)
		err := tx.exec(ctx, "INSERT INTO handled (k, n, message_id, attempt, at, failures) VALUES (?, ?, ?, ?, ?, ?)", m.Key, m.N, id.String(), m.Attempt, time.Now().UnixMicro(), before.Failures)
		n := handlers.Add(1)
		_, _ = fmt.Fprintln(claims, "claim", n, time.Now().UnixMicro(), m.Key)
		defer func() { _, _ = fmt.Fprintln(claims, "settled", n) }()
		if err == nil && r.Store {
			err = fails(ctx, tx, m, before.Failures)
		}
		return err
	}, opts...)
	cfg := worker.Config{Transport: transport, Concurrency: 8, Prefetch: 100, Observer: duplicates{db}, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Retry: waybill.Backoff{Delay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}}
	if r.Store {
		cfg.Store = db
	}
	w, err := worker.New(bus, consumer, cfg)
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// duplicates counts the duplicates that the inbox suppressed, in the database.
type duplicates struct{ db service }

func (d duplicates) Observe(ctx context.Context, e waybill.Event) {
	if e.Kind == waybill.Duplicate {
		d.db.suppressed(ctx, e.ID)
	}
}
