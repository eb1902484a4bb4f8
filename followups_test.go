package waybill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
)

// local is handled in place. Its handler dispatches Then, also messages of the transport.
type local struct{ Name string }

func (local) MessageName() string { return "local" }

// A tree is a bus whose messages dispatch others, with what happens in order.
type tree struct {
	t    *testing.T
	b    *waybill.Bus
	said []string
	then map[string][]string // dispatched by the handler of a name: "x" at once, "x later" with the stamp
	fail map[string]bool     // the handler fails in the end
}

// newTree returns a bus with a middleware that notes the messages, as a transaction would
// surround them.
func newTree(t *testing.T) *tree {
	tr := &tree{t: t, then: map[string][]string{}, fail: map[string]bool{}}
	tr.b = waybill.NewBus("main", waybill.Middleware{Name: "tx", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			name := env.Message().(local).Name
			tr.said = append(tr.said, "+"+name)
			defer func() { tr.said = append(tr.said, "-"+name) }()
			return next(ctx, env)
		}
	}})
	tr.handle(tr.b, "h", "")
	return tr
}

// handle adds a handler. It fails for the message of its name alone, if it has one.
func (tr *tree) handle(b *waybill.Bus, handler, only string) {
	waybill.Handle(b, handler, func(ctx context.Context, m local) error {
		if _, ok := waybill.Last[waybill.DispatchAfterCurrentBus](waybill.EnvelopeFrom(ctx)); ok {
			tr.t.Errorf("%s has the stamp", m.Name)
		}
		if only != "" {
			if m.Name == only {
				return errBoom
			}
			return nil
		}
		for _, other := range tr.then[m.Name] {
			name, later := strings.CutSuffix(other, " later")
			var stamps []waybill.Stamp
			if later {
				stamps = append(stamps, waybill.DispatchAfterCurrentBus{})
			}
			if _, err := b.Dispatch(ctx, local{name}, stamps...); err != nil && !tr.fail["ignored "+name] {
				return err
			}
		}
		if tr.fail[m.Name] {
			return fmt.Errorf("%s: %w", m.Name, errBoom)
		}
		return nil
	})
}

// wantBoth runs the message "root", dispatched and received, and compares what happened.
func (tr *tree) wantBoth(want, wantErr string) {
	tr.t.Helper()
	for kind, run := range map[string]func() error{
		"dispatched": func() error {
			_, err := tr.b.Dispatch(tr.t.Context(), local{"root"}, waybill.DispatchAfterCurrentBus{}) // no run is current
			return err
		},
		"received": func() error { return received(tr.t, tr.b, local{"root"}) },
	} {
		tr.said = nil
		err := run()
		if diff := cmp.Diff(strings.Fields(want), tr.said); diff != "" {
			tr.t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
		if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr) || !errors.Is(err, errBoom)) {
			tr.t.Errorf("%s: error = %v, want one with %q", kind, err, wantErr)
		}
	}
}

func TestFollowUpsComeInOrderAndOutsideTheMiddlewareOfTheFirst(t *testing.T) {
	tr := newTree(t)
	tr.then["root"] = []string{"a later", "now", "b later"}
	tr.wantBoth("+root +now -now -root +a -a +b -b", "")
}

func TestFollowUpsOfAMessageInsideWaitForTheOuterOne(t *testing.T) {
	tr := newTree(t)
	tr.then["root"], tr.then["inside"] = []string{"inside", "b later"}, []string{"a later"}
	tr.wantBoth("+root +inside -inside -root +a -a +b -b", "")
	tr.fail["root"] = true
	tr.wantBoth("+root +inside -inside -root", "root: boom")
	tr.fail["root"], tr.fail["inside"], tr.fail["ignored inside"] = false, true, true
	tr.wantBoth("+root +inside -inside -root +b -b", "")
}

func TestFollowUpsOfFollowUpsComeLast(t *testing.T) {
	tr := newTree(t)
	tr.then["root"], tr.then["a"] = []string{"a later", "b later"}, []string{"c later", "now"}
	tr.wantBoth("+root -root +a +now -now -a +b -b +c -c", "")
}

func TestFollowUpThatFailsTakesItsOwnAlong(t *testing.T) {
	tr := newTree(t)
	tr.then["root"], tr.then["a"] = []string{"a later", "b later", "c later"}, []string{"d later"}
	tr.fail["a"], tr.fail["c"] = true, true
	_, err := tr.b.Dispatch(t.Context(), local{"root"})
	want := []string{"+root", "-root", "+a", "-a", "+b", "-b", "+c", "-c"}
	if !errors.Is(err, errBoom) || strings.Count(err.Error(), "dispatch after current bus: h: ") != 2 || !cmp.Equal(tr.said, want) {
		t.Errorf("dispatched: %v, %v, want %v and the errors of both", err, tr.said, want)
	}
	// The handler of a received message runs again, and dispatches them all again.
	tr.said, want = nil, want[:4]
	var failed *waybill.HandlersError
	if err := received(t, tr.b, local{"root"}); !errors.As(err, &failed) || failed.Failed[0].Handler != "h" || len(failed.Succeeded) > 0 || !cmp.Equal(tr.said, want) {
		t.Errorf("received: %v, %v, want %v and the handler failed", err, tr.said, want)
	}
}

// The middleware of a follow-up fails when its handler has dispatched another one.
func TestFollowUpWhoseMiddlewareFailsTakesItsOwnAlong(t *testing.T) {
	var said []string
	b := waybill.NewBus("main", waybill.Middleware{Name: "tx", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			name := env.Message().(local).Name
			said = append(said, name)
			if err := next(ctx, env); err != nil || name != "a" {
				return err
			}
			return errBoom
		}
	}})
	waybill.Handle(b, "h", func(ctx context.Context, m local) error {
		for _, other := range map[string][]string{"root": {"a", "b"}, "a": {"c"}, "b": {"d"}}[m.Name] {
			if _, err := b.Dispatch(ctx, local{other}, waybill.DispatchAfterCurrentBus{}); err != nil {
				return err
			}
		}
		return nil
	})
	if _, err := b.Dispatch(t.Context(), local{"root"}); !errors.Is(err, errBoom) || !cmp.Equal(said, []string{"root", "a", "b", "d"}) {
		t.Errorf("Dispatch = %v with %v, want all but c", err, said)
	}
}

// A dispatch whose handlers have failed in part is dispatched again as a whole, a received
// message is not: TestFollowUpOfSucceededHandlerSurvivesFailureOfAnother.
func TestFollowUpsOfAPartlyFailedDispatchAreDropped(t *testing.T) {
	tr := newTree(t)
	tr.handle(tr.b, "second", "root")
	tr.then["root"] = []string{"a later"}
	if _, err := tr.b.Dispatch(t.Context(), local{"root"}); !errors.Is(err, errBoom) || !cmp.Equal(tr.said, []string{"+root", "-root"}) {
		t.Errorf("Dispatch = %v with %v, want no follow-up", err, tr.said)
	}
}

// Several buses have one queue of follow-ups, and middleware may dispatch them, too.
func TestFollowUpsOfOtherBusesAndOfMiddlewareWait(t *testing.T) {
	tr := newTree(t)
	outer := waybill.NewBus("outer", waybill.Middleware{Name: "audit", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			if _, err := tr.b.Dispatch(ctx, local{"audit"}, waybill.DispatchAfterCurrentBus{}); err != nil {
				return err
			}
			return next(ctx, env)
		}
	}})
	waybill.Handle(outer, "h", func(ctx context.Context, m local) error {
		tr.said = append(tr.said, "outer")
		_, err := tr.b.Dispatch(ctx, local{"a"}, waybill.DispatchAfterCurrentBus{})
		return err
	})
	want := []string{"outer", "+audit", "-audit", "+a", "-a"}
	if _, err := outer.Dispatch(t.Context(), local{"root"}); err != nil || !cmp.Equal(tr.said, want) {
		t.Errorf("dispatched: %v, %v, want %v", err, tr.said, want)
	}
	tr.said = nil
	if err := received(t, outer, local{"root"}); err != nil || !cmp.Equal(tr.said, want) {
		t.Errorf("received: %v, %v, want %v", err, tr.said, want)
	}
}

// A goroutine that outlives its handler dispatches a message whose handler has a follow-up.
func TestFollowUpBehindAHandlerIsSentAtOnce(t *testing.T) {
	bus, sent := waybill.NewBus("main"), make(chan string, 1)
	dispatched, over := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	waybill.Handle(bus, "h", func(ctx context.Context, m local) error {
		switch m.Name {
		case "outer":
			go func() {
				_, err := bus.Dispatch(ctx, local{"inner"})
				ended <- err
			}()
			<-dispatched
			return nil
		case "inner":
			if _, err := bus.Dispatch(ctx, local{"last"}, waybill.DispatchAfterCurrentBus{}); err != nil {
				return err
			}
			close(dispatched)
			<-over
			return nil
		}
		sent <- m.Name
		return nil
	})
	waybill.Handle(bus, "other", func(context.Context, local) error { return nil })
	if _, err := bus.Dispatch(t.Context(), local{"outer"}); err != nil {
		t.Fatal(err)
	}
	close(over)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	select {
	case <-sent:
	default:
		t.Error("the follow-up is lost")
	}
}
