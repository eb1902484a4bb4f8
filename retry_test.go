package waybill_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

var errBoom = errors.New("boom")

func TestBackoffStaysInItsBounds(t *testing.T) {
	durations := rapid.Int64Range(0, int64(48*time.Hour))
	rapid.Check(t, func(t *rapid.T) {
		b := waybill.Backoff{
			Delay: time.Duration(durations.Draw(t, "delay")), MaxDelay: time.Duration(durations.Draw(t, "max")), MaxRetryAfter: time.Duration(durations.Draw(t, "max after")),
			Multiplier: rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(1, 1e6)).Draw(t, "multiplier"),
			Jitter:     rapid.Float64Range(-1, 1).Draw(t, "jitter"),
		}
		if err := b.Validate(); err != nil {
			t.Fatal(err)
		}
		failures := rapid.IntRange(-1, 1<<40).Draw(t, "failures")
		jitter := max(cmp.Or(b.Jitter, 0.1), 0)
		got := b.After(failures, errBoom)
		least := min(cmp.Or(b.Delay, time.Second), b.Longest())
		if float64(got) < float64(least)*(1-jitter)-1 || float64(got) > float64(b.Longest())*(1+jitter)+1 {
			t.Fatalf("After(%d) = %v, want between %v and %v, %v more or less", failures, got, least, b.Longest(), jitter)
		}
		b.Jitter = -1
		if one, two := b.After(failures, nil), b.After(failures+1, nil); one > two {
			t.Fatalf("After(%d) = %v, and one failure more makes it %v", failures, one, two)
		}
		asked := time.Duration(rapid.Int64().Draw(t, "asked"))
		limit := cmp.Or(b.MaxRetryAfter, time.Hour)
		if got, want := b.After(failures, waybill.RetryAfter(errBoom, asked)), min(max(asked, 0), limit); got != want {
			t.Fatalf("After with RetryAfter %v = %v, want %v", asked, got, want)
		}
	})
}

// No limit is written as the largest duration.
func TestEndlessBackoffDoesNotOverflow(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	for _, b := range []waybill.Backoff{
		{Delay: math.MaxInt64, MaxDelay: math.MaxInt64, MaxRetryAfter: math.MaxInt64},
		{Delay: math.MaxInt64, MaxDelay: math.MaxInt64, MaxRetryAfter: math.MaxInt64, Jitter: -1},
		{Multiplier: math.MaxFloat64, MaxDelay: math.MaxInt64, MaxRetryAfter: math.MaxInt64, Jitter: 1},
	} {
		if err := b.Validate(); err != nil {
			t.Fatal(err)
		}
		for range 100 { // jitter is random
			if got := b.After(100, errBoom); got < 0 || got > century || b.Jitter < 0.5 && got < century/2 {
				t.Fatalf("After of %+v = %v, want about 100 years", b, got)
			}
		}
		if got := b.Longest(); got != century {
			t.Errorf("Longest of %+v = %v, want 100 years", b, got)
		}
		if got := b.After(1, waybill.RetryAfter(errBoom, math.MaxInt64)); got != century {
			t.Errorf("RetryAfter of %+v = %v, want 100 years", b, got)
		}
	}
}

func TestZeroBackoffCoversSixteenMinutes(t *testing.T) {
	b := waybill.Backoff{Jitter: -1}
	var got []time.Duration
	for failures := range 8 {
		got = append(got, b.After(failures+1, nil)/time.Second)
	}
	if diff := gocmp.Diff([]time.Duration{1, 3, 9, 27, 81, 243, 300, 300}, got); diff != "" {
		t.Errorf("seconds (-want +got):\n%s", diff)
	}
}

// The rules of retries: docs/retries.md.
func TestErrorsAreClassified(t *testing.T) {
	declined := errors.New("declined")
	after := func(d time.Duration) error { return waybill.RetryAfter(declined, d) }
	permanent := waybill.Unrecoverable(declined)
	failed := func(errs ...error) error {
		e := &waybill.HandlersError{}
		for i, err := range errs {
			e.Failed = append(e.Failed, waybill.HandlerError{Handler: fmt.Sprint("h", i), Err: err})
		}
		return e
	}
	wrapped := func(err error) error { return fmt.Errorf("x: %w", err) }
	const none = -1
	for _, tt := range []struct {
		name      string
		err       error
		permanent bool
		delay     time.Duration // none: the transport's own
	}{
		{"nil", nil, false, none},
		{"any", declined, false, none},
		{"marked", permanent, true, none},
		{"marked and wrapped", wrapped(permanent), true, none},
		{"undecodable", &waybill.DecodeError{Name: "n", Err: declined}, true, none},
		{"no handler", &waybill.NoHandlerError{Bus: "b", Name: "n"}, true, none},
		{"unknown name", &waybill.UnknownNameError{Name: "n"}, true, none},
		{"unavailable", waybill.ErrUnavailable, false, none},
		{"panic", failed(&waybill.PanicError{Value: 1}), false, none},
		{"later", after(time.Minute), false, time.Minute},
		{"later, wrapped twice", wrapped(wrapped(after(time.Minute))), false, time.Minute},
		{"later twice: the outer one", waybill.RetryAfter(after(time.Minute), time.Second), false, time.Second},
		{"for good, marked later outside", waybill.RetryAfter(wrapped(permanent), time.Minute), false, time.Minute},
		{"undecodable, marked later outside", waybill.RetryAfter(&waybill.DecodeError{Name: "n", Err: declined}, 0), false, 0},
		{"later, marked for good outside", waybill.Unrecoverable(wrapped(after(time.Minute))), true, none},
		{"joined", errors.Join(declined, declined), false, none},
		{"joined, one for good", errors.Join(declined, permanent), true, none},
		{"joined by two verbs, one for good", fmt.Errorf("%w: %w", declined, permanent), true, none},
		{"joined, one later", wrapped(errors.Join(declined, after(time.Minute))), false, time.Minute},
		{"joined, two later: the longest", errors.Join(after(time.Second), after(time.Hour), after(time.Minute)), false, time.Hour},
		{"joined, one later and one for good", errors.Join(after(time.Minute), permanent), true, none},
		{"all handlers for good", failed(permanent, wrapped(permanent)), true, none},
		{"one of two for good", failed(permanent, declined), false, none},
		{"one of two for good, wrapped", wrapped(failed(declined, permanent)), false, none},
		{"no failures", failed(), false, none},
		{"two handlers later: the longest", failed(after(time.Minute), declined, after(time.Hour)), false, time.Hour},
		{"a handler for good asks for nothing", failed(errors.Join(permanent, after(time.Hour)), after(time.Minute)), false, time.Minute},
		{"handlers inside joined errors", errors.Join(declined, failed(permanent, permanent)), true, none},
		{"joined errors inside a handler", failed(errors.Join(declined, permanent)), true, none},
	} {
		if got := waybill.IsUnrecoverable(tt.err); got != tt.permanent {
			t.Errorf("%s: IsUnrecoverable = %t, want %t", tt.name, got, tt.permanent)
		}
		d, ok := waybill.RetryDelay(tt.err)
		if !ok {
			d = none
		}
		if d != tt.delay {
			t.Errorf("%s: RetryDelay = %v, want %v", tt.name, d, tt.delay)
		}
	}
	if waybill.Unrecoverable(nil) != nil || waybill.RetryAfter(nil, 1) != nil {
		t.Error("marking nil makes an error, want nil")
	}
	if err := waybill.Unrecoverable(after(time.Minute)); !errors.Is(err, declined) {
		t.Errorf("%v does not wrap the marked error", err)
	}
	unknown := &waybill.CommitUnknownError{Err: declined}
	if !errors.Is(unknown, waybill.ErrCommitUnknown) || !errors.Is(unknown, declined) {
		t.Errorf("%v is not ErrCommitUnknown with its cause", unknown)
	}
	if want := "waybill: result of the commit is unknown: " + declined.Error(); unknown.Error() != want {
		t.Errorf("without messages: %q, want %q", unknown, want)
	}
}

func TestBackoffRefusesWhatIsOutOfRange(t *testing.T) {
	for name, b := range map[string]waybill.Backoff{
		"jitter": {Jitter: 1.01}, "multiplier": {Multiplier: 0.5}, "multiplier NaN": {Multiplier: math.NaN()}, "multiplier Inf": {Multiplier: math.Inf(1)}, "jitter NaN": {Jitter: math.NaN()}, "delay": {Delay: -1}, "longest": {MaxDelay: -1}, "after": {MaxRetryAfter: -1},
	} {
		if b.Validate() == nil {
			t.Errorf("%s: %+v is accepted", name, b)
		}
	}
	if err := (waybill.Backoff{Jitter: 1, Multiplier: 1}).Validate(); err != nil {
		t.Errorf("bounds are refused: %v", err)
	}
}
