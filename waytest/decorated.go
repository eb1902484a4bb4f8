package waytest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// An able publisher has a heartbeat, and a separate connection for retries.
type able struct {
	recorder
	heartbeat time.Duration
	connects  atomic.Int64
	isolated  *recorder
}

func (a *able) Traits() outbox.PublisherTraits { return outbox.PublisherTraits{Heartbeat: a.heartbeat} }
func (a *able) Connect(context.Context) error  { a.connects.Add(1); return nil }
func (a *able) Isolated() outbox.Publisher     { return a.isolated }

func decoratedStoreIsFenced[TX any](t *testing.T, s *fixture[TX]) {
	store := struct{ outbox.Store }{s.Store}
	var setting *outbox.SettingError
	if idle := store.Traits().IdleTimeout; idle > 0 {
		if _, err := outbox.NewRelay(store, &recorder{}, outbox.RelayConfig{PublishDeadline: idle}); !errors.As(err, &setting) {
			t.Errorf("a publish deadline as long as the idle timeout: %v", err)
		}
		if _, err := outbox.NewRelay(store, struct{ outbox.Publisher }{&able{heartbeat: idle}}, outbox.RelayConfig{}); !errors.As(err, &setting) {
			t.Errorf("a heartbeat as long as the idle timeout: %v", err)
		}
	}
}

// Each ability crosses a decorator that embeds the interface, as a layer of metrics does:
// routes and keys are blocked, parked, released and skipped,
// relays report, retries are isolated, and a relay connects after an outage.
func decoratedStoreAndPublisherKeepTheirAbilities[TX any](t *testing.T, s *fixture[TX]) {
	store := struct{ outbox.Store }{s.Store}
	can := store.Traits()
	var cured, retried atomic.Bool
	var calls atomic.Int64
	refuse := func(rec *waybill.Record) error {
		switch {
		case rec.Name == "X" && calls.Add(1) == 1:
			return waybill.ErrUnavailable
		case rec.Name == "x" && !cured.Load():
			return &outbox.UnroutableError{Reason: "no queue"}
		case rec.Name == "y" && !cured.Load() || rec.Name == "order.placed":
			return errRefused
		}
		return nil
	}
	to := &able{recorder: recorder{refuse: refuse}}
	to.isolated = &recorder{refuse: func(rec *waybill.Record) error { retried.Store(true); return refuse(rec) }}
	cfg := quickly("")
	cfg.OnExhausted = func(name string) outbox.Policy {
		return map[string]outbox.Policy{"y": outbox.Park, "order.placed": outbox.Skip}[name]
	}
	out := s.outbox(outbox.Config{})
	s.put(out, order{"skipped", 0}, named("X", order{"skipped", 1}), named("y", order{"parked", 0}))
	want := 2 // without the skipped one
	stop := s.relaying(store, struct{ outbox.Publisher }{to}, cfg)
	await(t, "one is parked, the rest is gone", func() bool {
		backlog, err := store.Backlog(context.Background(), outbox.DefaultTransport)
		return err == nil && backlog == outbox.Backlog{Pending: 1, Blocked: 1}
	})
	if !retried.Load() {
		t.Error("the retries were not isolated")
	}
	await(t, "it connects after the outage", func() bool { return to.connects.Load() > 0 })
	operator, operated := s.Store.(admin.Database)
	if can.BlocksRoutes && operated {
		s.put(out, named("x", order{"a", 0}), named("x", order{"b", 0}), named("x", order{"c", 0}), named("x", order{"d", 0}))
		want += 4
		await(t, "the route is blocked", func() bool {
			found, err := operator.Blocked(context.Background(), "", 0)
			return err == nil && slices.ContainsFunc(found, func(b admin.BlockedKey) bool { return b.Route == "x" })
		})
	}
	if can.KeepsReports && operated {
		await(t, "the relay has reported", func() bool {
			relays, err := operator.Relays(context.Background())
			return err == nil && len(relays) == 1 && relays[0].AgeSeconds > 0 && relays[0].AgeSeconds < 60
		})
	}
	cured.Store(true)
	if operated {
		if got := s.failed(admin.FailedQuery{}); got != "skipped0 skipped" {
			t.Errorf("dead letters: %q", got)
		}
		s.release(admin.BlockedQuery{Key: "parked"}, 1)
		await(t, "all are sent", func() bool { return len(to.all())+len(to.isolated.all()) == want })
	}
	stop()
}
