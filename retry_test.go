package waybill_test

import (
	"cmp"
	"errors"
	"fmt"
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

func TestErrorsAreClassified(t *testing.T) {
	declined := errors.New("declined")
	failed := func(errs ...error) error {
		e := &waybill.HandlersError{}
		for i, err := range errs {
			e.Failed = append(e.Failed, waybill.HandlerError{Handler: fmt.Sprint("h", i), Err: err})
		}
		return e
	}
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"nil", nil, false},
		{"any", declined, false},
		{"marked", waybill.Unrecoverable(declined), true},
		{"marked and wrapped", fmt.Errorf("x: %w", waybill.Unrecoverable(declined)), true},
		{"undecodable", &waybill.DecodeError{Name: "n", Err: declined}, true},
		{"no handler", &waybill.NoHandlerError{Bus: "b", Name: "n"}, true},
		{"unknown name", &waybill.UnknownNameError{Name: "n"}, true},
		{"unavailable", waybill.ErrUnavailable, false},
		{"all handlers for good", failed(waybill.Unrecoverable(declined), waybill.Unrecoverable(declined)), true},
		{"one of two for good", failed(waybill.Unrecoverable(declined), declined), false},
		{"one of two for good, wrapped", fmt.Errorf("x: %w", failed(declined, waybill.Unrecoverable(declined))), false},
		{"panic", failed(&waybill.PanicError{Value: 1}), false},
	} {
		if got := waybill.IsUnrecoverable(tt.err); got != tt.want {
			t.Errorf("%s: IsUnrecoverable = %t, want %t", tt.name, got, tt.want)
		}
	}
	if waybill.Unrecoverable(nil) != nil || waybill.RetryAfter(nil, 1) != nil {
		t.Error("marking nil makes an error, want nil")
	}
	if err := waybill.Unrecoverable(waybill.RetryAfter(declined, time.Minute)); !errors.Is(err, declined) {
		t.Errorf("%v does not wrap the marked error", err)
	}
	if d, ok := waybill.RetryDelay(failed(waybill.RetryAfter(declined, time.Minute))); d != time.Minute || !ok {
		t.Errorf("RetryDelay = %v, %t, want a minute", d, ok)
	}
	unknown := &waybill.CommitUnknownError{Err: declined}
	if !errors.Is(unknown, waybill.ErrCommitUnknown) || !errors.Is(unknown, declined) {
		t.Errorf("%v is not ErrCommitUnknown with its cause", unknown)
	}
}
