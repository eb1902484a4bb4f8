package waytest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// A testCase is one promise.
type testCase[TX any] struct {
	name string
	test func(t *testing.T, s *fixture[TX])
}

func runCases[TX any](t *testing.T, open func(t *testing.T) Harness[TX], cases []testCase[TX]) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, &fixture[TX]{open(t), t})
		})
	}
}

// fixture is the harness of one case, with the helpers of the cases.
type fixture[TX any] struct {
	Harness[TX]
	t *testing.T
}

// order is the message of the suites.
type order struct {
	Key string `json:"key"`
	Seq int    `json:"seq"`
}

func (order) MessageName() string    { return "order.placed" }
func (o order) PartitionKey() string { return o.Key }

// named is o under a name of the test's own: x, y, X or big.
func named(name string, o order) waybill.RawMessage {
	return waybill.RawMessage{Name: name, Key: o.Key, Body: fmt.Appendf(nil, `{"key":%q,"seq":%d}`, o.Key, o.Seq)}
}

func bodyOf(rec *waybill.Record) (o order) {
	_ = waybill.JSON{}.Decode(rec.Body, &o)
	return o
}

var (
	errChangedMind = errors.New("changed my mind")
	errRefused     = errors.New("refused by the broker")

	// noRetry means no second attempt before the test says so, however slow the
	// machine is.
	noRetry  = waybill.Backoff{Delay: time.Hour, MaxDelay: time.Hour, Jitter: -1}
	manyRows = outbox.ClaimLimit{Rows: 1 << 20, Bytes: 1 << 30}
)

// patience is the longest wait for an expected event, on a machine under other
// load.
const patience = 20 * time.Second

// moment is the time for which a case watches that an event does not happen.
const moment = 150 * time.Millisecond

func (s *fixture[TX]) outbox(cfg outbox.Config) *outbox.Outbox[TX] {
	s.t.Helper()
	return newOutbox(s.t, s.Store, cfg)
}

func newOutbox[TX any](t testing.TB, store Store[TX], cfg outbox.Config) *outbox.Outbox[TX] {
	t.Helper()
	types := waybill.NewTypes()
	types.AllowRaw("x", "X", "y", "big")
	cfg.Serializer.Types = types
	out, err := outbox.New(store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// put dispatches msgs in one unit of work.
func (s *fixture[TX]) put(out *outbox.Outbox[TX], msgs ...any) {
	s.t.Helper()
	if err := send(context.Background(), out, msgs...); err != nil {
		s.t.Fatal(err)
	}
}

func send[TX any](ctx context.Context, out *outbox.Outbox[TX], msgs ...any) error {
	return out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[TX]) error {
		for _, msg := range msgs {
			if _, err := tx.Dispatch(ctx, msg); err != nil {
				return err
			}
		}
		return nil
	})
}

// begin opens a transaction of the caller's own.
func (s *fixture[TX]) begin() TX {
	s.t.Helper()
	tx, err := s.Begin(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	return tx
}

// end ends what begin began.
func (s *fixture[TX]) end(tx TX, commit bool) {
	s.t.Helper()
	end := s.Rollback
	if commit {
		end = s.Commit
	}
	if err := end(context.Background(), tx); err != nil {
		s.t.Fatal(err)
	}
}

func (s *fixture[TX]) wantTexts(want ...string) {
	s.t.Helper()
	got, err := s.Texts(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("the application's table has %q, want %q", got, want)
	}
}

// parts are all parts of a transport.
var parts = []outbox.Part{outbox.Keyed, outbox.Unkeyed, outbox.Retries}

// claim claims rows of all parts of the default transport, at most limit of each.
func (s *fixture[TX]) claim(limit outbox.ClaimLimit) outbox.Claim {
	s.t.Helper()
	c, err := claimParts(s.Store, outbox.DefaultTransport, limit)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// claimPart claims rows of one part of the default transport.
func (s *fixture[TX]) claimPart(part outbox.Part, limit outbox.ClaimLimit) outbox.Claim {
	s.t.Helper()
	c, err := s.Store.Claim(context.Background(), outbox.DefaultTransport, part, limit)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// A partsClaim is one claim of each part, settled together.
type partsClaim []outbox.Claim

func claimParts(store outbox.Store, transport string, limit outbox.ClaimLimit) (outbox.Claim, error) {
	var all partsClaim
	for _, part := range parts {
		c, err := store.Claim(context.Background(), transport, part, limit)
		if err != nil {
			return nil, errors.Join(err, all.Settle(context.Background(), nil, nil))
		}
		if len(c.Rows()) > 0 {
			all = append(all, c)
		}
	}
	return all, nil
}

// Rows implements outbox.Claim.
func (p partsClaim) Rows() (all []outbox.ClaimedRow) {
	for _, c := range p {
		all = append(all, c.Rows()...)
	}
	return all
}

// Settle implements outbox.Claim.
func (p partsClaim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) (err error) {
	for _, c := range p {
		var done []outbox.ClaimedRow
		var not []outbox.Failure
		for _, row := range c.Rows() {
			for _, other := range published {
				if other.Record == row.Record {
					done = append(done, other)
				}
			}
			for _, f := range failed {
				if f.Row.Record == row.Record {
					not = append(not, f)
				}
			}
		}
		err = errors.Join(err, c.Settle(ctx, done, not))
	}
	return err
}

func (s *fixture[TX]) settle(c outbox.Claim, published []outbox.ClaimedRow, failed ...outbox.Failure) {
	s.t.Helper()
	if err := c.Settle(context.Background(), published, failed); err != nil {
		s.t.Fatal(err)
	}
}

// peek returns all rows of a transport that are due, ordered by id, and lets
// them go again.
func (s *fixture[TX]) peek(transport string) []outbox.ClaimedRow {
	s.t.Helper()
	rows, err := visit(s.Store, transport, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return rows
}

// take is peek for rows that are gone afterwards, as if they were published.
func (s *fixture[TX]) take(transport string) []outbox.ClaimedRow {
	s.t.Helper()
	rows, err := visit(s.Store, transport, true)
	if err != nil {
		s.t.Fatal(err)
	}
	return rows
}

// visit claims until there is no more: a claim may be smaller than its bound.
func visit(store outbox.Store, transport string, publish bool) (all []outbox.ClaimedRow, err error) {
	var claims []outbox.Claim
	type id struct {
		unkeyed bool // ids are unique within a table
		row     int64
	}
	seen := map[id]bool{}
	for {
		c, claimErr := claimParts(store, transport, manyRows)
		if claimErr != nil {
			err = claimErr
			break
		}
		if len(c.Rows()) == 0 {
			break
		}
		claims = append(claims, c)
		all = append(all, c.Rows()...)
		for _, row := range c.Rows() {
			this := id{row.Record.Key == "", row.ID}
			if seen[this] {
				err = fmt.Errorf("row %d is in two claims at once", row.ID)
			}
			seen[this] = true
		}
		if err != nil {
			break
		}
	}
	for _, c := range claims {
		var published []outbox.ClaimedRow
		if publish {
			published = c.Rows()
		}
		err = errors.Join(err, c.Settle(context.Background(), published, nil))
	}
	slices.SortFunc(all, func(a, b outbox.ClaimedRow) int { return int(a.ID - b.ID) })
	return all, err
}

// byKey are the messages of each key, in their order. Those without a key have
// none, and are sorted.
func byKey(rows []outbox.ClaimedRow) map[string][]int {
	all := map[string][]int{}
	for _, row := range rows {
		all[row.Record.Key] = append(all[row.Record.Key], bodyOf(row.Record).Seq)
	}
	slices.Sort(all[""])
	if len(all[""]) == 0 {
		delete(all, "")
	}
	return all
}

// wantWaiting compares the due messages with want, by key.
func (s *fixture[TX]) wantWaiting(what string, want ...order) {
	s.t.Helper()
	if diff := cmp.Diff(group(want), byKey(s.peek(outbox.DefaultTransport))); diff != "" {
		s.t.Errorf("%s: messages by key (-want +got):\n%s", what, diff)
	}
}

// group does to orders what byKey does to rows.
func group(orders []order) map[string][]int {
	all := map[string][]int{}
	for _, o := range orders {
		all[o.Key] = append(all[o.Key], o.Seq)
	}
	slices.Sort(all[""])
	if len(all[""]) == 0 {
		delete(all, "")
	}
	return all
}

// names lists the messages of a claim: "a1 a2 b1", keys sorted.
func names(rows []outbox.ClaimedRow) string {
	var words []string
	all := byKey(rows)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		for _, seq := range all[key] {
			words = append(words, fmt.Sprint(key, seq))
		}
	}
	return strings.Join(words, " ")
}

// row returns the row of that message.
func (s *fixture[TX]) row(c outbox.Claim, want order) outbox.ClaimedRow {
	s.t.Helper()
	for _, row := range c.Rows() {
		if bodyOf(row.Record) == want {
			return row
		}
	}
	s.t.Fatalf("the claim has %q, not %s%d", names(c.Rows()), want.Key, want.Seq)
	return outbox.ClaimedRow{}
}

func (s *fixture[TX]) wantBacklog(what string, want outbox.Backlog) {
	s.t.Helper()
	left, err := s.Store.Backlog(context.Background(), outbox.DefaultTransport)
	if err != nil || left != want {
		s.t.Errorf("%s: Backlog = %+v, %v, want %+v", what, left, err, want)
	}
}

// operator returns the operator's side of the database, or skips the case.
func (s *fixture[TX]) operator() admin.Database {
	s.t.Helper()
	db, ok := s.Store.(admin.Database)
	if !ok {
		s.t.Skip("the store is no admin.Database")
	}
	return db
}

// relays returns n stores on the harness, as those of as many processes where it
// can be.
func (s *fixture[TX]) relays(n int) []Store[TX] {
	s.t.Helper()
	stores := []Store[TX]{s.Store}
	for len(stores) < n {
		store := s.Store
		if s.Another != nil {
			store = s.Another(s.t)
		}
		stores = append(stores, store)
	}
	return stores
}

// drain relays all that is due.
func (s *fixture[TX]) drain(to outbox.Publisher, cfg outbox.RelayConfig) {
	s.t.Helper()
	cfg.Drain = true
	relay, err := outbox.NewRelay(s.Store, to, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := relay.Run(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// relaying runs a relay until the returned function is called, or the case ends.
func (s *fixture[TX]) relaying(store outbox.Store, to outbox.Publisher, cfg outbox.RelayConfig) (stop func()) {
	s.t.Helper()
	relay, err := outbox.NewRelay(store, to, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("relay: %v", err)
		}
	})
	s.t.Cleanup(stop)
	return stop
}

// recorder is a publisher that records each message, unless refuse returns an
// error for it.
type recorder struct {
	NoTraits
	refuse func(rec *waybill.Record) error

	mu  sync.Mutex
	got []order
	ids []waybill.MessageID
}

// Publish implements outbox.Publisher.
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
	return slices.Clone(r.got)
}

// perKey counts the messages of each key, and fails unless they came in order
// from 0.
func perKey(t testing.TB, got []order) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, o := range got {
		if o.Key != "" && o.Seq != n[o.Key] {
			t.Errorf("key %q: %d came, want %d", o.Key, o.Seq, n[o.Key])
		}
		n[o.Key]++
	}
	return n
}

// await waits for a condition.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// sameBucket returns n keys that share a bucket.
func sameBucket(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("s", i, "-"); outbox.Bucket(key, buckets) == 7 {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// otherBuckets returns n keys with a bucket each.
func otherBuckets(n int) (keys []string) {
	taken := map[int]bool{7: true}
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("o", i, "-")
		if b := outbox.Bucket(key, buckets); !taken[b] {
			taken[b] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// buckets is the number of buckets of a transport, by the specification of the
// tables.
const buckets = 64

// often bounds how often rapid checks where a check takes long: n times, unless
// -rapid.checks says how often. What failed is always checked again.
func often(n int, check func(rt *rapid.T)) func(rt *rapid.T) {
	failed, chosen := false, false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "rapid.checks" })
	return func(rt *rapid.T) {
		if n--; n < 0 && !chosen && !failed {
			return
		}
		failed = true
		check(rt)
		failed = false
	}
}
