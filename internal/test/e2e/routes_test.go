package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

func (s *stack) blocked() []admin.BlockedKey {
	s.Helper()
	found, err := s.db.Blocked(s.Context(), transport, 0)
	s.must(err)
	return found
}

// maxRouteEntries bounds the entries of a blocked route: itself, and a few keys that were
// refused before it showed that it is the route.
const maxRouteEntries = 5

func TestDeletedBindingBlocksItsRouteAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		const lost, kept = "order.paid", "order.placed"
		s.must(s.ch.QueueUnbind(everyone, "#", transport, nil))
		for _, name := range []string{lost, kept} {
			s.must(s.ch.QueueBind(everyone, name, transport, false, nil))
		}
		w := s.watch(everyone)
		s.patientRelay()
		s.patientRelay()
		mixed, pure := keyNames("mixed", 60), keyNames("pure", 20)
		s.dispatch(mixed, 2, kept, lost)
		s.dispatch(pure, 2, kept)
		w.await(160, patience)

		s.must(s.ch.QueueUnbind(everyone, lost, transport, nil))
		const rounds = 10
		for range rounds {
			s.dispatch(mixed, 2, kept, lost) // each begins with an odd number, which is one of lost
			s.dispatch(pure, 1, kept)
		}
		w.await(160+rounds*len(pure), patience)
		time.Sleep(500 * time.Millisecond)
		if got, want := w.messages(), 160+rounds*len(pure); got != want {
			t.Errorf("%d messages came, want %d: those of keys without the route", got, want)
		}
		var found []admin.BlockedKey // the route first; a key that was refused before it was known keeps an entry of its own
		s.eventually(patience, "the rows of keys with the route are left, and the route is blocked", func() bool {
			found = s.blocked()
			return s.left() == 2*rounds*len(mixed) && len(found) > 0 && found[0].Route == lost
		})
		if len(found) > maxRouteEntries || !strings.Contains(found[0].LastError, "no queue is bound") {
			t.Errorf("%d entries are blocked, want the route %s with its reason: %+v", len(found), lost, found)
		}

		for _, b := range found[min(1, len(found)):] {
			if !slices.Contains(mixed, b.Key) || b.HeadName != lost {
				t.Errorf("%+v is blocked, want nothing but the route, and keys whose first message takes it", b)
			}
		}

		s.must(s.ch.QueueBind(everyone, lost, transport, false, nil))
		if v := w.judge(patience); v.Duplicates != 0 {
			t.Errorf("%v, want no duplicate", v)
		}
		s.eventually(patience, "nothing is blocked", func() bool { return len(s.blocked()) == 0 && s.left() == 0 })
	})
}

// The cost of an unroutable route does not grow with its keys: it has one entry,
// and messages of other routes pass by.
func TestRouteOfManyKeysIsBlockedAsOne(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		const lost, kept, each = "order.paid", "order.placed", 2000
		n := 4000
		if *long {
			n = 100_000
		}
		s := on.stack(t)
		s.must(s.ch.QueueUnbind(everyone, "#", transport, nil))
		s.must(s.ch.QueueBind(everyone, kept, transport, false, nil))
		w := s.watch(everyone)
		others := keyNames("other", 500) // in all buckets
		s.dispatch(others, 1, kept)
		var number int
		s.must(s.one("SELECT id FROM waybill_transport", &number))
		for keys := range slices.Chunk(keyNames("lost", n), each) {
			var rows []any
			for _, key := range keys {
				id, err := waybill.NewMessageID()
				s.must(err)
				rows = append(rows, number, outbox.Bucket(key, 64), on.id(id), lost, key)
			}
			s.exec("INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, headers, body) VALUES (?, ?, ?, ?, ?, '{}', '{}')"+
				strings.Repeat(", (?, ?, ?, ?, ?, '{}', '{}')", each-1), rows...)
		}
		s.dispatch(others, 1, kept)
		start := time.Now()
		s.relay(s.openWith(s.database, 0), s.publisher(wayamqp.Config{Heartbeat: patientHeartbeat}), outbox.RelayConfig{Transport: transport})
		w.await(2*len(others), patience)
		t.Logf("what was behind %d rows of the route came after %v", n, time.Since(start).Round(time.Millisecond))
		for range 5 {
			s.dispatch(others, 1, kept)
			took := w.await(s.count("SELECT count(*) FROM sent"), patience)
			t.Logf("%d more came after %v", len(others), took.Round(time.Millisecond))
		}
		// A few keys may be refused before it shows that it is the route.
		found := s.blocked()
		if !slices.ContainsFunc(found, func(b admin.BlockedKey) bool { return b.Route == lost }) || len(found) > maxRouteEntries {
			t.Errorf("%d entries are blocked, want the route %s and hardly more: %+v", len(found), lost, found[:min(len(found), 5)])
		}
		// The relay settles the arrived messages a moment later.
		s.eventually(patience, fmt.Sprintf("%d rows are left, those of the route", n), func() bool { return s.left() == n })
		if v := w.judge(0); v.Duplicates != 0 {
			t.Errorf("%v, want no duplicate", v)
		}
	})
}

// A broker confirms the messages that it returns, and a client that looks at
// confirmations alone loses them.
func TestNoUnroutableMessageCountsAsDelivered(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		const n = 20_000
		s := on.stack(t)
		s.must(s.ch.QueueUnbind(everyone, "#", transport, nil))
		// Each has another name, or their route would be blocked after three.
		for i := 0; i < n; i += 2000 {
			s.must(s.app.inTx(t.Context(), func(ctx context.Context, u unit) error {
				for j := range 2000 {
					name := fmt.Sprint("nowhere.", i+j)
					s.types.AllowRaw(name)
					if _, err := u.dispatch(ctx, waybill.RawMessage{Name: name, Key: fmt.Sprint("key-", i+j), Body: []byte("{}")}); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		events := &tally{}
		db := s.openWith(s.database, 2*time.Minute) // for batches that take their time
		r := s.relay(db, s.publisher(wayamqp.Config{}), outbox.RelayConfig{
			Transport: transport, Batch: 2000, Window: 2000, PublishDeadline: time.Minute, Observer: events,
			Retry: waybill.Backoff{Delay: time.Hour, MaxDelay: time.Hour}, Log: slog.New(slog.DiscardHandler),
		})
		s.eventually(300*time.Second, "every message was refused", func() bool { return events.refused.Load()+events.published.Load() >= n })
		r.end()
		if got := s.left(); got != n || events.published.Load() != 0 {
			t.Errorf("%d rows are left and %d count as delivered, want %d and none", got, events.published.Load(), n)
		}
		if got := len(s.blocked()); got != n {
			t.Errorf("%d keys are blocked, want %d", got, n)
		}
	})
}

// A tally counts the messages that a relay reports as published or refused.
type tally struct{ published, refused atomic.Int64 }

func (c *tally) Observe(_ context.Context, e waybill.Event) {
	switch e.Kind {
	case waybill.Published:
		c.published.Add(1)
	case waybill.PublishFailed:
		c.refused.Add(1)
	}
}
