package waysqlite_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// dispatch commits one unit of work with all msgs.
func dispatch(t testing.TB, db *waysqlite.DB, cfg outbox.Config, msgs ...any) {
	t.Helper()
	out := newOutbox(t, db, cfg)
	err := out.InTx(context.Background(), func(ctx context.Context, tx waysqlite.Tx) error {
		_, err := out.DispatchAll(ctx, tx.SQL(), msgs...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// drain relays all that is due.
func drain(t testing.TB, db *waysqlite.DB, to outbox.Publisher, cfg outbox.RelayConfig) {
	t.Helper()
	cfg.Drain = true
	relay, err := outbox.NewRelay(db, to, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

var errRefused = errors.New("refused by the broker")

func TestPoisonedKeyWaitsAlone(t *testing.T) {
	db := open(t, waysqlite.Config{})
	var msgs []any
	for i := range 30 {
		msgs = append(msgs, order{fmt.Sprintf("k%d", i%3), i / 3})
	}
	msgs = append(msgs, order{"", 0}, order{"", 1}) // unkeyed: one is poisoned, too
	dispatch(t, db, outbox.Config{}, msgs...)

	poisoned := true
	sink := &recorder{refuse: func(rec *waybill.Record) error {
		if poisoned && (rec.Key == "k1" && string(rec.Body) == `{"key":"k1","seq":4}` || string(rec.Body) == `{"key":"","seq":0}`) {
			return errRefused
		}
		return nil
	}}
	// No second attempt before the test says so, however slow the machine is.
	cfg := outbox.RelayConfig{Retry: waybill.Backoff{Delay: time.Hour, MaxDelay: time.Hour, Jitter: -1}}
	drain(t, db, sink, cfg)
	if diff := cmp.Diff(map[string]int{"k0": 10, "k1": 4, "k2": 10, "": 1}, perKey(t, sink.got)); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	blocked, err := db.Blocked(t.Context(), "", 0)
	if err != nil || len(blocked) != 2 {
		t.Fatalf("Blocked = %+v, %v", blocked, err)
	}
	for _, b := range blocked {
		if b.LastError != errRefused.Error() || b.Failures != 1 || b.Key == "k1" && b.Waiting != 6 || b.Key == "" && b.Waiting != 1 {
			t.Errorf("blocked: %+v", b)
		}
	}
	left, err := db.Left(t.Context(), outbox.DefaultTransport)
	if err != nil || left != (outbox.Left{Pending: 7, Blocked: 7}) {
		t.Errorf("Left = %+v, %v", left, err)
	}

	// New rows of the key stay behind its head; another key's flow.
	dispatch(t, db, outbox.Config{}, order{"k1", 10}, order{"k2", 10})
	drain(t, db, sink, cfg)
	if got := perKey(t, sink.got); got["k1"] != 4 || got["k2"] != 11 {
		t.Errorf("published %v, want k1 to wait and k2 to go on", got)
	}

	poisoned = false
	if _, err := db.SQL().Exec("UPDATE waybill_outbox_blocked SET next_attempt_at = 0; UPDATE waybill_outbox_lane SET blocked_version = blocked_version + 1"); err != nil {
		t.Fatal(err)
	}
	drain(t, db, sink, cfg)
	if diff := cmp.Diff(map[string]int{"k0": 10, "k1": 11, "k2": 11, "": 2}, perKey(t, sink.got)); diff != "" {
		t.Errorf("published after the cure (-want +got):\n%s", diff)
	}
	if n := count(t, db, "SELECT count(*) FROM waybill_outbox_blocked"); n != 0 {
		t.Errorf("%d keys still blocked", n)
	}
}

// perKey counts what came, and fails unless each key came in order.
func perKey(t *testing.T, got []order) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, o := range got {
		if o.Key != "" && o.Seq != n[o.Key] {
			t.Errorf("key %s: %d came, want %d", o.Key, o.Seq, n[o.Key])
		}
		n[o.Key]++
	}
	return n
}

// A key with many rows behind its blocked head must not make the others wait
// for a scan of them: claims begin behind them.
func TestBlockedKeyWithManyFollowersCostsOthersNothing(t *testing.T) {
	db := open(t, waysqlite.Config{Normal: true})
	msgs := make([]any, 20_000)
	for i := range msgs {
		msgs[i] = order{"bad", i}
	}
	dispatch(t, db, outbox.Config{}, msgs...)
	sink := &recorder{refuse: func(rec *waybill.Record) error {
		if rec.Key == "bad" {
			return errRefused
		}
		return nil
	}}
	cfg := outbox.RelayConfig{Retry: waybill.Backoff{Delay: time.Hour, MaxDelay: time.Hour, Jitter: -1}}
	drain(t, db, sink, cfg) // blocks the key
	release, err := db.Lead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	claim := func() time.Duration {
		start := time.Now()
		if _, err := db.Claim(t.Context(), outbox.DefaultTransport, outbox.Max{Rows: 100, Bytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	cold := claim() // scans once
	var warm time.Duration
	for range 20 {
		warm += claim() / 20
	}
	if warm > cold/2 {
		t.Errorf("a claim takes %v after %v with a cold cursor: it scans the blocked rows again", warm, cold)
	}
	dispatch(t, db, outbox.Config{}, order{"good", 0})
	got, err := db.Claim(t.Context(), outbox.DefaultTransport, outbox.Max{Rows: 100, Bytes: 1 << 20})
	if err != nil || len(got.Rows()) != 1 || got.Rows()[0].Record.Key != "good" {
		t.Errorf("claim behind the blocked rows = %v, %v", got.Rows(), err)
	}
}

func TestUnreadableRowBlocksItsKeyOnly(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"bad", 0}, order{"bad", 1}, order{"good", 0})
	if _, err := db.SQL().Exec("UPDATE waybill_outbox SET headers = '{oops' WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	if diff := cmp.Diff([]order{{"good", 0}}, sink.got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if left, err := db.Left(t.Context(), outbox.DefaultTransport); err != nil || left.Blocked != 2 {
		t.Errorf("Left = %+v, %v", left, err)
	}
}

func TestClaimIsBoundedByRowsAndBytes(t *testing.T) {
	db := open(t, waysqlite.Config{})
	var msgs []any
	for i := range 10 {
		msgs = append(msgs, waybill.NewEnvelope(waybill.RawMessage{Name: "big", Key: fmt.Sprint(i), ContentType: "application/octet-stream", Body: make([]byte, 1000)}))
	}
	types := waybill.NewTypes()
	types.AllowRaw("big")
	dispatch(t, db, outbox.Config{Serializer: waybill.Serializer{Types: types}}, msgs...)
	for _, c := range []struct {
		max  outbox.Max
		want int
	}{{outbox.Max{Rows: 3, Bytes: 1 << 20}, 3}, {outbox.Max{Rows: 100, Bytes: 3500}, 3}, {outbox.Max{Rows: 100, Bytes: 1}, 1}} {
		claim, err := db.Claim(t.Context(), outbox.DefaultTransport, c.max)
		if err != nil || len(claim.Rows()) != c.want {
			t.Errorf("Claim(%+v) = %d rows, %v, want %d", c.max, len(claim.Rows()), err, c.want)
		}
		if err := claim.Settle(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
		if ct := claim.Rows()[0].Record.ContentType; ct != "application/octet-stream" {
			t.Errorf("content type came back as %q", ct)
		}
	}
}

func TestDelayedMessageIsOrderedFromItsDueTime(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	start := time.Now()
	for i, delay := range []time.Duration{300 * time.Millisecond, 150 * time.Millisecond, 0} {
		err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
			_, err := tx.Dispatch(ctx, order{"k", i}, waybill.Delay(delay))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	if took := time.Since(start); len(sink.got) != 1 && took < 150*time.Millisecond {
		t.Errorf("%v came after %v", sink.got, took)
	}
	for len(sink.got) < 3 && time.Since(start) < 5*time.Second {
		drain(t, db, sink, outbox.RelayConfig{})
	}
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("the last came after %v, it was delayed by 300ms", took)
	}
	if diff := cmp.Diff([]order{{"k", 2}, {"k", 1}, {"k", 0}}, sink.got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestLanesAreIndependent(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{Routes: waybill.Routes{"*": {"dead", "alive"}}}, order{"k", 0}, order{"k", 1})
	dead := &recorder{refuse: func(*waybill.Record) error { return fmt.Errorf("%w: connection refused", waybill.ErrUnavailable) }}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	relay, err := outbox.NewRelay(db, dead, outbox.RelayConfig{Transport: "dead"})
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Run(ctx); err != nil {
		t.Fatal(err)
	}
	alive := &recorder{}
	drain(t, db, alive, outbox.RelayConfig{Transport: "alive"})
	if len(alive.got) != 2 {
		t.Errorf("the healthy transport got %v", alive.got)
	}
	left, err := db.Left(t.Context(), "dead")
	if err != nil || left != (outbox.Left{Pending: 2}) {
		t.Errorf("Left of the dead transport = %+v, %v: an outage is no message's failure", left, err)
	}
}

func TestSecondRelayProcessIsRefusedUntilTheFirstEnds(t *testing.T) {
	first := open(t, waysqlite.Config{})
	second := openAt(t, first.Path(), waysqlite.Config{})
	release, err := first.Lead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, err := first.Lead(t.Context()) // another transport of the same process
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Lead(t.Context()); !errors.Is(err, waybill.ErrRelayRunning) {
		t.Fatalf("Lead of another = %v, want ErrRelayRunning", err)
	}
	release()
	if _, err := second.Lead(t.Context()); !errors.Is(err, waybill.ErrRelayRunning) {
		t.Fatalf("Lead of another after one of two relays ended = %v, want ErrRelayRunning", err)
	}
	again()
	release, err = second.Lead(t.Context())
	if err != nil {
		t.Fatalf("Lead after the first ended = %v", err)
	}
	release()
}

func TestCommitWakesTheRelayOfItsProcess(t *testing.T) {
	db := open(t, waysqlite.Config{})
	sink := &recorder{}
	relay, err := outbox.NewRelay(db, sink, outbox.RelayConfig{PollMin: time.Hour, PollMax: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- relay.Run(ctx) }()
	dispatch(t, db, outbox.Config{}, order{"k", 0})
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if count(t, db, "SELECT count(*) FROM waybill_outbox") == 0 {
			break
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(sink.got) != 1 {
		t.Errorf("published %v without a poll, want one message", sink.got)
	}
}
