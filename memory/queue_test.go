package memory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
)

func send(t testing.TB, q *memory.Queue, recs ...*waybill.Record) {
	t.Helper()
	for _, rec := range recs {
		if err := q.Send(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
}

// receive returns the messages that can be received now.
func receive(t testing.TB, q *memory.Queue, max int) []*waybill.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	ds, err := q.Receive(ctx, max)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return ds
}

func texts(ds []*waybill.Delivery) string {
	var recs []*waybill.Record
	for _, d := range ds {
		recs = append(recs, d.Record)
	}
	return bodies(recs)
}

func check(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func wantTexts(t testing.TB, what string, ds []*waybill.Delivery, want string) {
	t.Helper()
	if got := texts(ds); got != want {
		t.Errorf("%s: received %q, want %q", what, got, want)
	}
}

func TestRetriedMessageHoldsItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.NewDB()
		q := db.Queue("q")
		send(t, q, record(t, "a", "a1"), record(t, "a", "a2"), record(t, "b", "b1"))
		ds := receive(t, q, 9)
		ds[0].Record.MarkHandled("mail")
		check(t, q.Retry(t.Context(), ds[0], time.Minute), q.Release(t.Context(), ds[1:]...))
		rest := receive(t, q, 9)
		wantTexts(t, "while a waits", rest, "b1 ")
		check(t, q.Ack(t.Context(), rest...))
		start := time.Now()
		again, err := q.Receive(t.Context(), 9)
		check(t, err)
		if texts(again) != "a1 a2 " {
			t.Fatalf("when a is due: received %q, want a1 and a2", texts(again))
		}
		if waited := time.Since(start); waited < time.Minute || waited > time.Minute+time.Second {
			t.Errorf("Receive returned after %v, want a minute", waited)
		}
		if again[0].Failures != 1 || again[1].Failures != 0 {
			t.Errorf("failures = %d and %d, want 1 and 0", again[0].Failures, again[1].Failures)
		}
		if got := again[0].Record.Headers[waybill.HeaderHandledBy]; got != "mail" {
			t.Errorf("header %s = %q, want the value set before Retry", waybill.HeaderHandledBy, got)
		}
	})
}

func TestLeaseThatIsNotRenewedGoesToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.NewDB()
		one, two := db.Queue("q"), db.Queue("q")
		send(t, one, record(t, "a", "a1"), record(t, "b", "b1"))
		held := receive(t, one, 9)
		for range 5 {
			time.Sleep(one.LeaseTime() / 2)
			lost, err := one.Renew(t.Context(), held[0])
			if err != nil || len(lost) > 0 {
				t.Fatalf("Renew = %v, %v, want nothing lost", lost, err)
			}
		}
		theirs, err := two.Receive(t.Context(), 9)
		check(t, err)
		wantTexts(t, "second", theirs, "b1 ")
		lost, err := one.Renew(t.Context(), held...)
		if err != nil || len(lost) != 1 || lost[0] != held[1] {
			t.Errorf("Renew = %v, %v, want b1 lost", lost, err)
		}
		for name, err := range map[string]error{
			"Ack": one.Ack(t.Context(), held[1]), "Retry": one.Retry(t.Context(), held[1], 0), "Release": one.Release(t.Context(), held[1]),
		} {
			if !errors.Is(err, waybill.ErrLeaseLost) {
				t.Errorf("%s after the lease was lost = %v, want %v", name, err, waybill.ErrLeaseLost)
			}
		}
		if err := one.Ack(t.Context(), held...); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("Ack = %v, want %v", err, waybill.ErrLeaseLost)
		}
		if one.Len() != 1 {
			t.Errorf("%d messages left, want b1: the other one was acknowledged", one.Len())
		}
		check(t, two.Ack(t.Context(), theirs...))
	})
}

func TestLeaseTakenAnewBySameReceiverIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := memory.NewDB().Queue("q")
		send(t, q, record(t, "a", "a1"))
		old := receive(t, q, 1)
		time.Sleep(q.LeaseTime())
		check(t, q.Ack(t.Context(), receive(t, q, 1)...))
		if err := q.Ack(t.Context(), old...); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("Ack with the old lease = %v, want %v", err, waybill.ErrLeaseLost)
		}
	})
}

// In a bubble a poll would take time; a wake-up takes none.
func TestReceiveIsWokenByWhatChanges(t *testing.T) {
	tests := []struct {
		name   string
		before []string // keys
		wake   func(t *testing.T, db *memory.DB, other *memory.Queue, held []*waybill.Delivery)
		want   string
	}{
		{"send", nil, func(t *testing.T, _ *memory.DB, other *memory.Queue, _ []*waybill.Delivery) {
			send(t, other, record(t, "", "new"))
		}, "new "},
		{"commit", nil, func(t *testing.T, db *memory.DB, _ *memory.Queue, _ []*waybill.Delivery) {
			commit(t, db, outbox.Row{Record: record(t, "", "new"), Queue: "q"})
		}, "new "},
		{"ack of a key's head", []string{"a", "a"}, func(t *testing.T, _ *memory.DB, other *memory.Queue, held []*waybill.Delivery) {
			check(t, other.Ack(t.Context(), held...))
		}, "a1 "},
		{"release", []string{"a"}, func(t *testing.T, _ *memory.DB, other *memory.Queue, held []*waybill.Delivery) {
			check(t, other.Release(t.Context(), held...))
		}, "a0 "},
		{"retry at once", []string{"a"}, func(t *testing.T, _ *memory.DB, other *memory.Queue, held []*waybill.Delivery) {
			check(t, other.Retry(t.Context(), held[0], 0))
		}, "a0 "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := memory.NewDB()
				q, other := db.Queue("q"), db.Queue("q")
				for i, key := range tt.before {
					send(t, q, record(t, key, fmt.Sprint(key, i)))
				}
				var held []*waybill.Delivery
				if len(tt.before) > 0 {
					held = receive(t, other, 1)
				}
				start := time.Now()
				got := make(chan []*waybill.Delivery)
				go func() {
					ds, _ := q.Receive(t.Context(), 9)
					got <- ds
				}()
				synctest.Wait()
				tt.wake(t, db, other, held)
				wantTexts(t, tt.name, <-got, tt.want)
				if waited := time.Since(start); waited != 0 {
					t.Errorf("Receive was woken after %v, want at once", waited)
				}
			})
		})
	}
}

func TestDelayedMessageArrivesWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := memory.NewDB()
		q := db.Queue("q")
		late := record(t, "", "late")
		late.Delay = time.Hour
		send(t, q, late)
		soon := outbox.Row{Record: record(t, "", "soon"), Queue: "q"}
		soon.Record.Delay = time.Minute
		start := time.Now()
		go func() { // Receive waits for the hour already
			_ = db.InTx(t.Context(), func(ctx context.Context, tx *memory.Tx) error { return db.Write(ctx, tx, soon) })
		}()
		var took []time.Duration
		for _, want := range []string{"soon ", "late "} {
			ds, err := q.Receive(t.Context(), 9)
			check(t, err)
			wantTexts(t, "when due", ds, want)
			check(t, q.Ack(t.Context(), ds...))
			took = append(took, time.Since(start))
		}
		if want := []time.Duration{time.Minute, time.Hour}; !cmp.Equal(took, want) {
			t.Errorf("received after %v, want %v", took, want)
		}
		if got := bodies(q.Sent()); got != "soon late " {
			t.Errorf("Sent = %q, want both, also when they are handled", got)
		}
	})
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	q := memory.NewDB().Queue("q")
	send(t, q, record(t, "", "x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ds, err := q.Receive(ctx, 1); len(ds) > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("Receive = %v, %v, want nothing and %v", ds, err, context.Canceled)
	}
	if err := q.Send(ctx, record(t, "", "y")); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Send = %v, want %v: the queue did not refuse the message", err, waybill.ErrUnavailable)
	}
	if _, err := q.Receive(t.Context(), 0); err == nil {
		t.Error("Receive of 0 messages = nil, want an error")
	}
	if err := q.Ack(t.Context(), &waybill.Delivery{Record: record(t, "", "z"), Tag: 7}); err == nil {
		t.Error("Ack of a delivery of another transport = nil, want an error")
	}
}

// step is one operation on a queue with three receivers.
type step struct {
	Do       string
	Receiver int
	Key      string
	Max      int
}

var anyStep = rapid.Custom(func(t *rapid.T) step {
	return step{
		rapid.SampledFrom([]string{"send", "send", "receive", "receive", "ack", "ack", "retry", "release rest", "release", "wait", "die"}).Draw(t, "do"),
		rapid.IntRange(0, 2).Draw(t, "receiver"),
		rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"),
		rapid.IntRange(1, 4).Draw(t, "max"),
	}
})

// For every sequence of steps, a key's messages are handled in order and each once.
func TestKeysKeepTheirOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(anyStep, 1, 60).Draw(rt, "steps")
		var err error // reported on the goroutine of rapid
		synctest.Test(t, func(t *testing.T) { err = play(t, steps) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

func play(t *testing.T, steps []step) error {
	db, ctx := memory.NewDB(), t.Context()
	receivers := []*memory.Queue{db.Queue("q"), db.Queue("q"), db.Queue("q")}
	held, rest := make([][]*waybill.Delivery, len(receivers)), make([][]*waybill.Delivery, len(receivers))
	sent, acked := map[string]int{}, map[string]int{}
	handled := func(d *waybill.Delivery) error {
		acked[d.Record.Key]++
		if got, want := string(d.Record.Body), fmt.Sprint(acked[d.Record.Key]); got != want {
			return fmt.Errorf("key %s: message %s handled, want %s", d.Record.Key, got, want)
		}
		return nil
	}
	for i, s := range steps {
		q, mine := receivers[s.Receiver], held[s.Receiver]
		var err error
		switch {
		case s.Do == "send":
			sent[s.Key]++
			send(t, q, record(t, s.Key, fmt.Sprint(sent[s.Key])))
		case s.Do == "receive":
			held[s.Receiver] = append(mine, receive(t, q, s.Max)...)
		case s.Do == "ack" && len(mine) > 0: // in the order in which they were delivered
			held[s.Receiver] = mine[1:]
			err = errors.Join(handled(mine[0]), q.Ack(ctx, mine[0]))
		case s.Do == "retry" && len(mine) > 0: // messages behind it are released later
			held[s.Receiver] = nil
			err = q.Retry(ctx, mine[0], time.Second)
			rest[s.Receiver] = append(rest[s.Receiver], mine[1:]...)
		case s.Do == "release rest":
			err = q.Release(ctx, rest[s.Receiver]...)
			rest[s.Receiver] = nil
		case s.Do == "release":
			held[s.Receiver] = nil
			err = q.Release(ctx, mine...)
		case s.Do == "wait": // and renew
			time.Sleep(time.Second)
			for r, ds := range held {
				if lost, _ := receivers[r].Renew(ctx, append(ds, rest[r]...)...); len(lost) > 0 {
					err = fmt.Errorf("receiver %d lost %d leases that it renewed", r, len(lost))
				}
			}
		case s.Do == "die":
			receivers[s.Receiver], held[s.Receiver], rest[s.Receiver] = db.Queue("q"), nil, nil
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	time.Sleep(time.Minute) // all leases expire
	for _, d := range receive(t, db.Queue("q"), 1000) {
		if err := handled(d); err != nil {
			return err
		}
	}
	if diff := cmp.Diff(sent, acked); diff != "" {
		return fmt.Errorf("handled (-sent +handled):\n%s", diff)
	}
	return nil
}
