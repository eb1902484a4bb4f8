package waysqlite_test

import (
	"context"
	"errors"
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

// perKey counts the messages of each key, and fails unless they came in order.
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
	release, err := db.StartRelay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	look := func() time.Duration {
		start := time.Now()
		want(t, db, outbox.Keyed, "")
		return time.Since(start)
	}
	cold := look() // scans once
	warm := cold
	for range 20 {
		warm = min(warm, look())
	}
	if warm > cold/2 {
		t.Errorf("a claim takes %v after %v with a cold cursor: it scans the blocked rows again", warm, cold)
	}
	dispatch(t, db, outbox.Config{}, order{"good", 0})
	want(t, db, outbox.Keyed, "good0")
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
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left.Blocked != 2 {
		t.Errorf("Backlog = %+v, %v", left, err)
	}
}

func TestSecondRelayProcessIsRefusedUntilTheFirstEnds(t *testing.T) {
	first := open(t, waysqlite.Config{})
	second := openAt(t, first.Path(), waysqlite.Config{})
	release, err := first.StartRelay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, err := first.StartRelay(t.Context()) // another transport of the same process
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.StartRelay(t.Context()); !errors.Is(err, waybill.ErrRelayRunning) {
		t.Fatalf("Lead of another = %v, want ErrRelayRunning", err)
	}
	release()
	if _, err := second.StartRelay(t.Context()); !errors.Is(err, waybill.ErrRelayRunning) {
		t.Fatalf("Lead of another after one of two relays ended = %v, want ErrRelayRunning", err)
	}
	again()
	release, err = second.StartRelay(t.Context())
	if err != nil {
		t.Fatalf("Lead after the first ended = %v", err)
	}
	release()
}
