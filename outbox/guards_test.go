package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// problem makes one row of a claim unreadable.
type problem struct {
	outbox.Store
	names string // separated by spaces
}

func (s problem) Claim(ctx context.Context, transport string, part outbox.Part, m outbox.ClaimLimit) (outbox.Claim, error) {
	c, err := s.Store.Claim(ctx, transport, part, m)
	if err != nil {
		return nil, err
	}
	for _, row := range c.Rows() {
		if slices.Contains(strings.Fields(s.names), name(row.Record)) {
			row.Record.Problem = errors.New("unreadable")
		}
	}
	return c, err
}

func TestUnreadableRowHoldsBackItsKeyInAnAtomicBatch(t *testing.T) {
	y := newYard(t)
	y.cfg.Drain = true
	y.dispatch(step{"a", 1}, step{"a", 2}, step{"b", 1}, step{"c", 1}, step{"b", 2})
	to := &atomically{}
	if err := newRelay(t, problem{y.db, "a1 c1"}, to, y.cfg).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	y.wantPending("a1 a2 c1")
	if len(to.calls) != 1 || fmt.Sprint(to.calls[0]) != "b1 b2" {
		t.Errorf("calls %q: want b1 b2 alone, once", to.calls)
	}
}

// A slow but healthy broker: 30 ms a record, one key.
func TestSlowBrokerIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.broker.delay = 30 * time.Millisecond
		for n := range 500 {
			y.dispatch(step{"a", n})
		}
		stop := y.start(y.db)
		time.Sleep(time.Minute)
		stop()
		if n := len(y.broker.tries); n != 500 {
			t.Errorf("%d publishes of 500 messages", n)
		}
	})
}

func TestDatabaseOutOfReachWhileLeadingIsRiddenOut(t *testing.T) {
	y := newYard(t)
	y.cfg.Standby = true
	store := &scripted{Store: y.db, lead: func() error { return fmt.Errorf("x: %w", waybill.ErrUnavailable) }}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := newRelay(t, store, y.broker, y.cfg).Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestDatabaseThatDoesNotAnswerTheStartIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		y.dispatch(step{"a", 1})
		stop := y.start(&scripted{Store: y.db, silent: true})
		time.Sleep(20 * time.Second)
		stop()
		if n := len(y.broker.tries); n != 1 {
			t.Errorf("%d messages were published, want 1", n)
		}
	})
}

func TestNegativeRelayConfigNamesItsField(t *testing.T) {
	for field, cfg := range map[string]outbox.RelayConfig{
		"Batch": {Batch: -1}, "BatchBytes": {BatchBytes: -1}, "Workers": {Workers: -1}, "Window": {Window: -1}, "MaxAttempts": {MaxAttempts: -1},
		"PublishDeadline": {PublishDeadline: -1}, "PollMin": {PollMin: -1}, "PollMax": {PollMax: -1},
	} {
		y := newYard(t)
		_, err := outbox.NewRelay(y.db, y.broker, cfg)
		if want := field + " is negative (-1): leave it zero for the default"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewRelay(%+v) = %v, want an error with %q", cfg, err, want)
		}
	}
}
