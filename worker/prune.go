package worker

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/waybill-go/waybill"
)

// An Inbox is the database in which the handlers of a worker have their inbox. Its methods
// may be called concurrently, also by other workers and processes.
type Inbox interface {
	// PruneExpired removes up to max entries that no message needs any more, in one short
	// transaction, and returns their number. Fewer than max means that none is left.
	PruneExpired(ctx context.Context, max int) (removed int, err error)
	// MaxConns returns how many handlers with an inbox can run at once; one means that the
	// database has a single writer.
	MaxConns() int
}

const (
	pruneEvery   = time.Minute      // on average
	pruneTurn    = 20 * time.Second // the time of all batches of a minute
	pruneBatch   = 500              // entries of a batch
	pruneTimeout = 10 * time.Second // of a batch
)

// checkConns warns of a pool in which the transactions of handlers can take the connection
// that renews leases and settles.
func (r *running) checkConns(ctx context.Context) {
	n := r.cfg.Inbox.MaxConns()
	if n > 1 && n <= r.cfg.Concurrency {
		r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "fewer connections than handlers with an inbox and one more: while all are taken, no lease is renewed", slog.String("transport", r.cfg.Transport), slog.Int("connections", n), slog.Int("concurrency", r.cfg.Concurrency))
	}
}

// prune removes expired entries of the inbox until ctx ends, once a minute. The times of
// several workers differ, and one that runs for less than a minute may take its turn, too.
func (r *running) prune(ctx context.Context) {
	for wait := rand.N(pruneEvery); sleep(ctx.Done(), wait); wait = pruneEvery/2 + rand.N(pruneEvery) {
		removed, err := r.pruneOnce(ctx)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, waybill.ErrUnavailable): // the loops that handle log an outage
			r.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "inbox not pruned, will try again", slog.Any("err", err))
		case err != nil:
			r.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "inbox not pruned, will try again", slog.Int("removed", removed), slog.Any("err", err))
		case removed > 0:
			r.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "inbox pruned", slog.Int("removed", removed))
		}
	}
}

// pruneOnce removes batches until none is left, or pruneTurn has passed. After each it
// pauses for as long as it took, so that handlers have half of the database's time.
func (r *running) pruneOnce(ctx context.Context) (removed int, err error) {
	for start := time.Now(); ; {
		began := time.Now()
		n, err := r.pruneBatch(ctx)
		removed += n
		if err != nil || n < pruneBatch || !sleep(ctx.Done(), time.Since(began)) || time.Since(start) >= pruneTurn {
			return removed, err
		}
	}
}

func (r *running) pruneBatch(ctx context.Context) (removed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	err = waybill.Guard(func() (err error) {
		removed, err = r.cfg.Inbox.PruneExpired(ctx, pruneBatch)
		return err
	})
	return removed, err
}
