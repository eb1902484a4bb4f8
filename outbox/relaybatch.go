package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
)

// relayBatch claims, publishes and settles one batch and returns how many rows it
// claimed. It calls claimed once it has rows to publish. An outage of the broker is returned as an error once the confirmed rows
// are settled; for retries only if the broker answered for none.
func (r *Relay) relayBatch(ctx context.Context, part Part, to Publisher, claimed func()) (int, error) {
	claiming, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline) // a network may swallow the answer
	defer cancel()
	claim, err := r.store.Claim(claiming, r.cfg.Transport, part, ClaimLimit{r.cfg.Batch, r.cfg.BatchBytes})
	if err != nil {
		return 0, fmt.Errorf("claim: %w", err)
	}
	rows := claim.Rows()
	if len(rows) == 0 {
		r.status.idle(ctx)
		return 0, nil
	}
	claimed()
	crash.At(crash.RelayAfterClaim)
	// The batch outlives the stop signal: a confirmed row that is not deleted would be
	// published again.
	ctx = context.WithoutCancel(ctx)
	settled := false
	defer func() {
		if !settled { // a panic of the publisher: the claim must not outlive it
			_ = claim.Settle(ctx, nil, nil)
		}
	}()
	var traced []context.Context
	for _, row := range rows {
		if step := r.observer.Begin(ctx, waybill.Published, r.cfg.Transport, row.Record); step != ctx {
			traced = append(traced, step)
		}
	}
	end := r.observer.Group(waybill.Published, r.cfg.Transport, traced)
	b := r.publish(ctx, part, to, rows)
	end(b.Outage())
	crash.At(crash.RelayAfterPublish)
	done, failed := r.outcomes(part, b)
	settling, cancel := context.WithTimeout(ctx, r.cfg.PublishDeadline)
	defer cancel()
	settled = true
	if err := claim.Settle(settling, done, failed); err != nil {
		return 0, fmt.Errorf("settle: %w", err)
	}
	crash.At(crash.RelayAfterSettle)
	r.batches.Add(1)
	r.report(ctx, done, failed)
	if part == Retries {
		r.hint(Keyed) // keys may be unblocked
	} else {
		r.hintAt(failed)
		r.status.now(ctx, b.Outage())
	}
	if err := b.Outage(); err != nil && (part != Retries || len(done)+b.refused() == 0) {
		return 0, &BrokerError{err}
	}
	return len(rows), nil
}

// outcomes returns the published rows of a batch, and its failures, each with its delay
// and policy.
func (r *Relay) outcomes(part Part, b *batch) (done []ClaimedRow, failed []Failure) {
	var isolate []Failure
	if part == Retries {
		isolate = r.poison.confirm(b)
	} else {
		isolate = r.poison.observe(b)
	}
	done, failed = b.finished()
	if r.store.Traits().BlocksRoutes && part != Retries {
		failed = r.poison.routes(done, failed)
	}
	for i, f := range failed {
		f.Route = f.Route || f.Row.Route
		failed[i] = r.cfg.decide(f)
	}
	for _, f := range isolate {
		f.Policy = r.cfg.policy(f)
		f.Route = f.Row.Route
		failed = append(failed, f)
	}
	return done, failed
}

// policy returns the policy of OnExhausted for a failure. A route, and any value but
// Park and Skip, mean Block.
func (cfg RelayConfig) policy(f Failure) Policy {
	if cfg.OnExhausted != nil && !f.Route {
		if policy := cfg.OnExhausted(f.Row.Record.Name); policy == Park || policy == Skip {
			return policy
		}
	}
	return Block
}

// rejectedRetry is the delay before a rejected record is retried: a full queue may have
// room at any moment. It grows, because a hundred keys that are retried ten times a second
// cost the broker and the database as much as a thousand new messages.
var rejectedRetry = waybill.Backoff{Delay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second}

// decide sets the policy and the delay of a refused row, and whether it is exhausted.
func (cfg RelayConfig) decide(f Failure) Failure {
	f.Policy = cfg.policy(f)
	var rejected *RejectedError
	switch {
	case errors.As(f.Err, &rejected):
		f.RetryIn = rejectedRetry.After(f.failures(), nil)
	case f.failures() < cfg.MaxAttempts:
		f.RetryIn = cfg.Retry.After(f.failures(), f.Err)
	default:
		f.RetryIn, f.Exhausted = cfg.Retry.Longest(), f.Policy != Block
	}
	return f
}

// failures returns how often the key or route was refused, this time included.
func (f Failure) failures() int { return f.Row.Failures + 1 }

// retriesShare divides the publish deadline for a batch of retries: a record that is
// never confirmed must not delay the retries behind it for long.
const retriesShare = 5

// publish sends rows until each is confirmed, refused or behind a refused row of its
// key, or the broker is unavailable, or half of the deadline has passed.
func (r *Relay) publish(ctx context.Context, part Part, to Publisher, rows []ClaimedRow) *batch {
	deadline := r.cfg.PublishDeadline
	if part == Retries {
		deadline /= retriesShare
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if part == Retries {
		return r.retry(ctx, to, rows)
	}
	window, can := r.cfg.Window, to.Traits()
	if can.Atomic {
		b := newBatch(rows, true)
		r.exchange(ctx, to, b, len(rows))
		if b.refused() < 2 || b.published() > 0 || b.Outage() != nil {
			return b // also when rows that cannot be read were refused before the call
		}
		// One bad item has failed the whole call: publish each item in a separate
		// call to find it.
		window = 1
	}
	b := newBatch(rows, false)
	if can.Stream != nil && r.cfg.Pipelined {
		b.Pipeline(can.Stream)
		window = len(rows)
	}
	r.exchange(ctx, to, b, window)
	return b
}

// retry sends rows one at a time. After a lost connection it reconnects and continues
// with the next row.
func (r *Relay) retry(ctx context.Context, to Publisher, rows []ClaimedRow) *batch {
	b := newBatch(rows, false)
	for {
		before := b.unknown()
		r.exchange(ctx, to, b, 1)
		if b.unknown() == before || b.Outage() != nil && r.connect(ctx, to) != nil {
			return b
		}
		b.Resume()
	}
}

// exchange publishes the ready records of b and records their results, with at most
// window records unconfirmed.
func (r *Relay) exchange(ctx context.Context, to Publisher, b *batch, window int) {
	results := make(chan Result, window)
	items := make([]Item, 0, window)
	// A record sent near the deadline could time out and be taken for an outage: the
	// second half of the time is for confirmations.
	end, _ := ctx.Deadline()
	enough := end.Add(-time.Until(end) / 2)
	late := time.NewTimer(time.Until(end) + grace)
	defer late.Stop()
	for {
		if time.Now().After(enough) {
			b.Stop()
		}
		if items = b.take(window-b.Open(), items[:0]); len(items) > 0 {
			to.Publish(ctx, items, results)
		}
		if b.Open() == 0 {
			return
		}
		select {
		case result := <-results:
			b.Done(result.Seq, result.Err)
			crash.At(crash.RelayInPublish)
		case <-late.C:
			b.Abandon(errNoAnswer)
			return
		}
		for more := true; more; { // drain further results, so that the next call carries more
			select {
			case result := <-results:
				b.Done(result.Seq, result.Err)
			default:
				more = false
			}
		}
	}
}

// grace is how long after its context's end a publisher may still answer.
const grace = 5 * time.Second

var errNoAnswer = fmt.Errorf("%w: the publisher does not answer after its deadline", waybill.ErrUnavailable)
