package keyorder

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

// handling is a queue and the transport around it: deliveries that are not in flight
// wait in the transport, in order.
type handling struct {
	queue   *HandleQueue
	waiting []*waybill.Delivery // in the transport
	running []*waybill.Delivery
	handled map[string][]int // sequence numbers by key
}

func seq(d *waybill.Delivery) int { return d.Tag.(int) }

func (w *handling) back(ds ...*waybill.Delivery) {
	w.queue.Settled(len(ds))
	w.waiting = append(w.waiting, ds...)
	slices.SortFunc(w.waiting, func(a, b *waybill.Delivery) int { return seq(a) - seq(b) })
}

// Whatever arrives, succeeds and fails: of a key one runs at a time, in order;
// messages without a key, and the head of every other key, can run at once.
func TestHandleQueueRunsOneOfEachKeyInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &handling{queue: NewHandleQueue(0), handled: map[string][]int{}}
		total := rapid.IntRange(1, 40).Draw(t, "messages")
		for i := range total {
			key := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key")
			w.waiting = append(w.waiting, &waybill.Delivery{Record: &waybill.Record{Key: key}, Tag: i})
		}
		step := func(do string) {
			switch do {
			case "receive":
				n := rapid.IntRange(0, len(w.waiting)).Draw(t, "n")
				for _, d := range w.waiting[:n] {
					w.queue.Add(d)
				}
				w.waiting = slices.Clone(w.waiting[n:])
			case "run":
				w.run(t)
			case "succeed", "fail":
				if len(w.running) == 0 {
					return
				}
				i := rapid.IntRange(0, len(w.running)-1).Draw(t, "which")
				d := w.running[i]
				w.running = slices.Delete(w.running, i, i+1)
				if do == "succeed" {
					w.handled[d.Record.Key] = append(w.handled[d.Record.Key], seq(d))
					w.queue.Succeeded(d)
					w.queue.Settled(1)
					return
				}
				behind := w.queue.Failed(d)
				w.back(append(append(behind, d), w.queue.Forget(d)...)...)
			case "rest":
				w.back(w.queue.Rest()...)
				for _, d := range w.running {
					if d.Record.Key != "" {
						w.queue.Succeeded(d) // nothing starts after rest: let go of the keys
						w.handled[d.Record.Key] = append(w.handled[d.Record.Key], seq(d))
					} else {
						w.handled[""] = append(w.handled[""], seq(d))
					}
				}
				w.queue.Settled(len(w.running))
				if w.queue.count != 0 {
					t.Fatalf("%d in flight after the rest went back and the running were settled, want 0", w.queue.count)
				}
				w.queue, w.running = NewHandleQueue(0), nil
			}
		}
		for range rapid.IntRange(0, 120).Draw(t, "steps") {
			step(rapid.SampledFrom([]string{"receive", "run", "run", "succeed", "succeed", "fail", "rest"}).Draw(t, "do"))
		}
		for len(w.waiting)+len(w.running)+w.queue.count > 0 { // all of it ends well
			for _, d := range w.waiting {
				w.queue.Add(d)
			}
			w.waiting = nil
			w.run(t)
			if len(w.running) == 0 {
				t.Fatalf("%d are in flight and none can run", w.queue.count)
			}
			for _, d := range w.running {
				w.handled[d.Record.Key] = append(w.handled[d.Record.Key], seq(d))
				w.queue.Succeeded(d)
				w.queue.Settled(1)
			}
			w.running = nil
		}
		n := 0
		for key, seqs := range w.handled {
			n += len(seqs)
			if key != "" && !slices.IsSorted(seqs) {
				t.Fatalf("key %s was handled in the order %v", key, seqs)
			}
		}
		if n != total {
			t.Fatalf("%d messages handled, want %d: %v", n, total, w.handled)
		}
		if len(w.queue.behind) != 0 {
			t.Fatalf("the empty queue remembers keys: %v", w.queue.behind)
		}
	})
}

// run takes all that can run.
func (w *handling) run(t *rapid.T) {
	for d := w.queue.Take(); d != nil; d = w.queue.Take() {
		for _, other := range w.running {
			if d.Record.Key != "" && other.Record.Key == d.Record.Key {
				t.Fatalf("messages %d and %d of key %s run at once", seq(other), seq(d), d.Record.Key)
			}
		}
		w.running = append(w.running, d)
	}
	busy := map[string]bool{}
	for _, d := range w.running {
		busy[d.Record.Key] = true
	}
	for key, behind := range w.queue.behind {
		if len(behind) > 0 && !busy[key] {
			t.Fatalf("%d messages wait behind key %s, of which none runs", len(behind), key)
		}
	}
}

func TestFailedHeadTakesItsFollowersWithIt(t *testing.T) {
	h := NewHandleQueue(0)
	ds := make([]*waybill.Delivery, 5)
	for i, key := range []string{"a", "a", "b", "a", ""} {
		ds[i] = &waybill.Delivery{Record: &waybill.Record{Key: key}, Tag: i}
		h.Add(ds[i])
	}
	if d := h.Take(); d != ds[0] {
		t.Fatalf("took %v, want the oldest", d)
	}
	if got, want := fmt.Sprint(h.Failed(ds[0])), fmt.Sprint([]*waybill.Delivery{ds[1], ds[3]}); got != want {
		t.Errorf("behind the failed one: %s, want %s", got, want)
	}
	late := &waybill.Delivery{Record: &waybill.Record{Key: "a"}, Tag: 9}
	h.Add(late)
	if got := h.Forget(ds[0]); len(got) != 1 || got[0] != late {
		t.Errorf("arrived meanwhile: %v, want %v", got, late)
	}
	if h.Take() != ds[2] || h.Take() != ds[4] || h.Take() != nil {
		t.Error("want b and the one without key to run, and nothing else")
	}
}
