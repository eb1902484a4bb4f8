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
		id := fmt.Sprintf("0198c0de-%04x-7abc-8def-%012x", n, n*7919)
		at := time.Unix(int64(n)*86_413, 0).UTC().Format(time.RFC3339)
		for _, err := range []error{
			fmt.Errorf("charge order %s at %s: %w", id, at, declined),
			fmt.Errorf("charge order %s at %s: %w", id, at, context.DeadlineExceeded),
			waybill.Unrecoverable(fmt.Errorf("customer %d is unknown", n)),
		} {
			prints[describe(err).Fingerprint] = true
		}
	}
	if len(prints) != 3 {
		t.Errorf("%d fingerprints of 3000 errors of three kinds, want 3", len(prints))
	}
}
