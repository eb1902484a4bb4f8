package waycli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// A cancelled commit would leave its result unknown: the chunk that has begun ends, and counts.
func TestInterruptLetsTheChunkEnd(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	b := batches{s: &session{app: App{Name: "waybill"}, stderr: newScreen(io.Discard)}, verb: "dispatched again", command: "failed retry"}
	for n := range 3 * maxBatch {
		b.found = append(b.found, selected{number: int64(n)})
	}
	var tried []int
	b.do = func(ctx context.Context, numbers ...int64) (int, error) {
		tried = append(tried, len(numbers))
		if len(tried) == 2 {
			interrupt()
		}
		return len(numbers), ctx.Err()
	}
	err := b.run(ctx)
	if !errors.Is(err, errInterrupted) || ExitCode(err) != 5 {
		t.Errorf("run = %v, exit code %d, want 5 for interrupted", err, ExitCode(err))
	}
	if !slices.Equal(tried, []int{maxBatch, maxBatch}) || b.done.Load() != 2*maxBatch {
		t.Errorf("chunks of %v were tried, %d messages count", tried, b.done.Load())
	}
}

// The audit has a row for each chunk: with the numbers of all in each it would grow with their square.
func TestAuditHasEachNumberOnce(t *testing.T) {
	b := batches{s: &session{app: App{Name: "waybill"}, stderr: newScreen(io.Discard)}, filter: failedFilter{Since: "2h"}}
	for n := range int64(3*maxBatch - 1) {
		b.found = append(b.found, selected{number: n + 1})
		b.filter.Numbers = append(b.filter.Numbers, n+1)
	}
	var audited []int64
	b.do = func(ctx context.Context, numbers ...int64) (int, error) {
		var row failedFilter
		err := json.Unmarshal(admin.ActionOf(ctx, nil).Filter, &row)
		if audited = append(audited, row.Numbers...); row.Since != "2h" || !slices.Equal(row.Numbers, numbers) {
			t.Errorf("the row of %d numbers has %d, and --since %q", len(numbers), len(row.Numbers), row.Since)
		}
		return len(numbers), err
	}
	if err := b.run(t.Context()); err != nil || !slices.Equal(audited, b.filter.Numbers) {
		t.Errorf("run = %v with %d numbers in the audit, want each of %d once", err, len(audited), len(b.filter.Numbers))
	}
}

// A look takes as long as messages were dispatched. One after each chunk would take a third of this retry,
// and more of a longer one.
func TestStopAfterFailuresKeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := batches{s: &session{app: App{Name: "waybill"}, stderr: newScreen(io.Discard), log: slog.New(slog.DiscardHandler)}, rate: 50, stopAfter: 10}
		b.found = make([]selected, 100_000)
		b.do = func(_ context.Context, numbers ...int64) (int, error) { return len(numbers), nil }
		failed, looks := 0, 0
		b.failedAgain = func(_ context.Context, dispatched ...admin.FailedMessage) (int, error) {
			time.Sleep(time.Duration(len(dispatched)) * 10 * time.Microsecond)
			if looks++; len(dispatched) > 90_000 {
				failed = 10
			}
			return failed, nil
		}
		began, ideal := time.Now(), 90_000/50*time.Second
		if err := b.run(t.Context()); err == nil || b.again != 10 {
			t.Errorf("run = %v with %d failures", err, b.again)
		}
		if took := time.Since(began); took > ideal+ideal/10 || b.tried > 91_000 {
			t.Errorf("%d messages took %v with %d looks, want %v for 90000", b.tried, took, looks, ideal)
		}
	})
}
