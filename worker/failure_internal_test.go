package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

// Errors that differ in numbers, ids and times have one fingerprint.
func TestFingerprintsGroupErrors(t *testing.T) {
	declined := errors.New("declined")
	prints := map[string]bool{}
	for n := range 1000 {
		at := time.Unix(int64(n)*86_413, int64(n)*7_919_000).UTC()
		for _, err := range []error{
			fmt.Errorf("charge order %s at %s: %w", idOf(n), at.Format(time.RFC3339Nano), declined),
			fmt.Errorf("charge order %s at %s: %w", idOf(n), at.Format(time.RFC3339Nano), context.DeadlineExceeded),
			waybill.Unrecoverable(fmt.Errorf("customer %d is unknown", n)),
			fmt.Errorf("limited until %s: try again in %v", at.Format(time.RFC1123), time.Duration(n)*7*time.Millisecond),
			fmt.Errorf("%s: %.2f of %g EUR left in %s at %v, %d %% off", at.Format(time.ANSIC), float64(n)*3.7, float64(n)/4, idOf(n), at, n%100-50),
		} {
			prints[describe(err).Fingerprint] = true
		}
	}
	if len(prints) != 5 {
		t.Errorf("%d fingerprints of 5000 errors of five kinds, want 5", len(prints))
	}
}

// idOf returns a different id for each n, of several forms.
func idOf(n int) string {
	switch n % 4 {
	case 0:
		return fmt.Sprintf("0198c0de-%04x-7abc-8def-%012x", n, n*7919)
	case 1:
		return fmt.Sprintf("01ARZ3NDEK%016d", n) // ULID
	case 2:
		return fmt.Sprintf("cus_4%x", n*7919)
	}
	return fmt.Sprint(n)
}

// Errors that differ in words have several.
func TestFingerprintsTellErrorsApart(t *testing.T) {
	prints := map[string]string{}
	for _, text := range []string{
		"column price does not exist", "column stock does not exist", "dial tcp 10.0.0.1:5432: connection refused", "dial tcp 10.0.0.1:5432: i/o timeout",
		"order 7: declined", "order 7, declined", "declined",
	} {
		of := describe(errors.New(text)).Fingerprint
		if other, ok := prints[of]; ok {
			t.Errorf("%q has the fingerprint of %q", text, other)
		}
		prints[of] = text
	}
}

func TestInterruptionsAndOutagesAreNoFailures(t *testing.T) {
	declined := errors.New("declined")
	for err, want := range map[error]bool{
		nil: false, declined: true, ErrDrained: false, waybill.ErrLeaseLost: false, waybill.ErrUnavailable: false, waybill.ErrTransactionLost: false,
		&waybill.HandlersError{Failed: []waybill.HandlerError{{Err: waybill.ErrUnavailable}}}:                  false,
		&waybill.HandlersError{Failed: []waybill.HandlerError{{Err: waybill.ErrUnavailable}, {Err: declined}}}: true,
	} {
		if got := Failed(err); got != want {
			t.Errorf("Failed(%v) = %t", err, got)
		}
	}
}
