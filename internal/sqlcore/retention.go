package sqlcore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A Retention notes whether this process has recorded in the database how long its inbox
// must keep entries. The zero value is ready for use.
type Retention struct{ needed, recorded atomic.Bool }

// Need has the next Record write: a handler counts on the entries.
func (r *Retention) Need() { r.needed.Store(true) }

// Record calls record once it is needed, until it has succeeded.
func (r *Retention) Record(ctx context.Context, record func(ctx context.Context) error) error {
	if !r.needed.Load() || r.recorded.Load() {
		return nil
	}
	if err := record(ctx); err != nil {
		return fmt.Errorf("inbox retention: %w", err)
	}
	r.recorded.Store(true)
	return nil
}

// Seconds rounds up: a retention is recorded in whole seconds.
func Seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
