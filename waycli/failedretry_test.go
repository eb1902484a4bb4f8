package waycli

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
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
