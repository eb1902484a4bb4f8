package waytest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
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
const patience = 60 * time.Second

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
