package sqlcore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// An OperatorTx is a transaction in which an operator changes dead letters, or messages that
// wait for a retry.
type OperatorTx interface {
	// Exec runs a statement of failed.sql, and returns how many rows it has changed.
	Exec(ctx context.Context, statement string, args ...any) (int, error)
	// Take removes a skipped message, or returns sql.ErrNoRows. Its headers are not nil.
	Take(ctx context.Context, number int64) (outbox.Row, error)
	// Replay puts workers' messages into the retry queues again, and returns how many.
	Replay(ctx context.Context, numbers []int64) (int, error)
	// Write dispatches.
	Write(ctx context.Context, row outbox.Row) error
	// ReleaseParked makes the parked messages of a retry queue claimable, or those of one of
	// its keys, and returns how many. SkipParked makes them dead letters.
	ReleaseParked(ctx context.Context, transport, key string) (int, error)
	SkipParked(ctx context.Context, transport, key, failureTransport string) (int, error)
	// Requested locks a schedule, and returns the time of its pending request, or nil, and the
	// present time. It returns sql.ErrNoRows without the schedule. Request makes a request.
	Requested(ctx context.Context, schedule string) (pending *time.Time, now time.Time, err error)
	Request(ctx context.Context, schedule string, at time.Time) error
}

// A Transact runs fn in a transaction, and translates its errors.
type Transact func(ctx context.Context, fn func(ctx context.Context, tx OperatorTx) error) error

// Audit records an operator's change of n messages in its transaction.
func Audit(ctx context.Context, tx OperatorTx, action string, filter any, n int) error {
	a := admin.ActionOf(ctx, filter)
	_, err := tx.Exec(ctx, "audit", text(a.Actor, maxShort), action, string(a.Filter), n)
	return err
}

// Audited runs an operator's change, and records it unless it has changed 0 messages.
func Audited(ctx context.Context, in Transact, action string, filter any, change func(ctx context.Context, tx OperatorTx) (int, error)) (n int, err error) {
	err = in(ctx, func(ctx context.Context, tx OperatorTx) (err error) {
		if n, err = change(ctx, tx); err == nil && n > 0 {
			err = Audit(ctx, tx, action, filter, n)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", action, err)
	}
	return n, nil
}

// An Operator makes an operator's changes of the database that embeds it.
type Operator struct {
	change   Transact
	dispatch Transact // in which Write is possible
	retries  *Wakes   // of retry queues
}

// NewOperator returns an Operator that dispatches by the second Transact alone. The wakes
// are those of retry queues.
func NewOperator(change, dispatch Transact, retries *Wakes) Operator {
	return Operator{change, dispatch, retries}
}

// byNumber is the filter of an action on given dead letters.
func byNumber(numbers []int64) any { return map[string][]int64{"numbers": numbers} }

// RetryFailed implements admin.Database.
func (o Operator) RetryFailed(ctx context.Context, numbers ...int64) (int, error) {
	return o.retry(ctx, "failed retry", false, numbers)
}

// RetryFailedAsNew implements admin.DeadLetters.
func (o Operator) RetryFailedAsNew(ctx context.Context, numbers ...int64) (int, error) {
	return o.retry(ctx, "failed retry --as-new", true, numbers)
}

// retry dispatches skipped messages again and replays those of workers, or sends all
// as new ones, in ascending order: two operators cannot deadlock.
func (o Operator) retry(ctx context.Context, action string, asNew bool, numbers []int64) (int, error) {
	return Audited(ctx, o.dispatch, action, byNumber(numbers), func(ctx context.Context, tx OperatorTx) (n int, err error) {
		for _, number := range slices.Sorted(slices.Values(numbers)) {
			done, err := dispatchAgain(ctx, tx, number, asNew)
			if n += done; err != nil {
				return n, fmt.Errorf("message %d: %w", number, err)
			}
		}
		if asNew {
			return n, nil
		}
		replayed, err := tx.Replay(ctx, numbers)
		return n + replayed, err
	})
}

// dispatchAgain dispatches a skipped message, and a worker's only as a new one. It returns 0
// if there is none: another operator was quicker.
func dispatchAgain(ctx context.Context, tx OperatorTx, number int64, asNew bool) (n int, err error) {
	id, err := waybill.NewMessageID()
	if err != nil {
		return 0, err
	}
	row, err := tx.Take(ctx, number)
	switch rec := row.Record; {
	case errors.Is(err, sql.ErrNoRows) && asNew:
		if n, err = tx.Exec(ctx, "add_as_new", id.String(), waybill.HeaderHandledBy, waybill.HeaderCausationID, number); n > 0 {
			_, err = tx.Exec(ctx, "remove", []int64{number})
		}
		return n, err
	case errors.Is(err, sql.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, err
	case asNew:
		delete(rec.Headers, waybill.HeaderHandledBy)
		rec.Headers[waybill.HeaderCausationID] = rec.ID.String()
		rec.ID, rec.DispatchedAt = id, time.Now().UTC()
	}
	return 1, tx.Write(ctx, row)
}

// EditFailed implements admin.DeadLetters.
func (o Operator) EditFailed(ctx context.Context, number int64, from, to []byte) error {
	from, to = append([]byte{}, from...), append([]byte{}, to...)                    // a nil one would be NULL, which equals nothing
	ctx = admin.WithAction(ctx, admin.Action{Actor: admin.ActionOf(ctx, nil).Actor}) // without a filter
	n, err := Audited(ctx, o.change, "failed edit", map[string]any{"number": number, "original_body_base64": from}, func(ctx context.Context, tx OperatorTx) (int, error) {
		return tx.Exec(ctx, "edit", to, number, from)
	})
	if err == nil && n == 0 {
		err = fmt.Errorf("failed message %d: %w", number, admin.ErrChanged)
	}
	return err
}

// RemoveFailed implements admin.Database.
func (o Operator) RemoveFailed(ctx context.Context, numbers ...int64) (int, error) {
	return Audited(ctx, o.change, "failed remove", byNumber(numbers), func(ctx context.Context, tx OperatorTx) (int, error) {
		return tx.Exec(ctx, "remove", numbers)
	})
}

// ReleaseRetries implements admin.Retries.
func (o Operator) ReleaseRetries(ctx context.Context, transport, key string) (int, error) {
	return o.unpark(ctx, "retries release", transport, key, func(ctx context.Context, tx OperatorTx) (int, error) {
		return tx.ReleaseParked(ctx, transport, key)
	})
}

// SkipParked implements admin.Retries.
func (o Operator) SkipParked(ctx context.Context, transport, key, failureTransport string) (int, error) {
	return o.unpark(ctx, "retries release --skip-head", transport, key, func(ctx context.Context, tx OperatorTx) (int, error) {
		return tx.SkipParked(ctx, transport, key, cmp.Or(failureTransport, "failed"))
	})
}

func (o Operator) unpark(ctx context.Context, action, transport, key string, change func(context.Context, OperatorTx) (int, error)) (int, error) {
	n, err := Audited(ctx, o.change, action, map[string]string{"transport": transport, "key": key}, change)
	o.retries.HintQueue(transport)
	return n, err
}

// TriggerSchedule implements admin.Schedules.
func (o Operator) TriggerSchedule(ctx context.Context, name string) (requested time.Time, added bool, err error) {
	err = o.change(ctx, func(ctx context.Context, tx OperatorTx) error {
		pending, now, err := tx.Requested(ctx, name)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("schedule %q: %w", name, waybill.ErrNotFound)
		case err != nil:
			return err
		case pending != nil:
			requested = *pending
			return nil
		}
		if err := tx.Request(ctx, name, now); err != nil {
			return err
		}
		requested, added = now, true
		return Audit(ctx, tx, "schedules trigger", map[string]string{"name": name}, 1)
	})
	return requested.UTC(), added && err == nil, err
}

// StopWorkers implements admin.Workers.
func (o Operator) StopWorkers(ctx context.Context, ids ...string) (int, error) {
	return Audited(ctx, o.change, "workers stop", map[string][]string{"ids": ids}, func(ctx context.Context, tx OperatorTx) (n int, err error) {
		for _, id := range ids {
			if _, err := uuid.FromString(id); err != nil {
				return 0, fmt.Errorf("%q is no id of a process: %w", id, err)
			}
			found, err := tx.Exec(ctx, "stop_workers", id)
			if n += found; err != nil {
				return n, err
			}
		}
		return n, nil
	})
}

// PauseTransport implements admin.Workers.
func (o Operator) PauseTransport(ctx context.Context, transport, reason string) (bool, error) {
	p, err := admin.NewPause(ctx, transport, reason)
	if err != nil {
		return false, err
	}
	filter := map[string]string{"transport": transport, "reason": reason}
	n, err := Audited(ctx, o.change, "workers pause", filter, func(ctx context.Context, tx OperatorTx) (int, error) {
		return tx.Exec(ctx, "pause", p.Transport, p.Actor, p.Reason)
	})
	return n > 0, err
}

// ResumeTransport implements admin.Workers.
func (o Operator) ResumeTransport(ctx context.Context, transport string) (bool, error) {
	n, err := Audited(ctx, o.change, "workers resume", map[string]string{"transport": transport}, func(ctx context.Context, tx OperatorTx) (int, error) {
		return tx.Exec(ctx, "resume", transport)
	})
	return n > 0, err
}

// Prune calls remove until a batch is not full, and reports each batch to progress if
// that is not nil.
func Prune(batch int, progress func(int), remove func() (int, error)) (total int, err error) {
	for n := batch; n >= batch; {
		if n, err = remove(); err != nil {
			return total, fmt.Errorf("inbox prune: %w", err)
		}
		total += n
		if progress != nil {
			progress(n)
		}
	}
	return total, nil
}

// Age rounds an age in seconds to milliseconds; a clock that went back makes none negative.
func Age(seconds float64) float64 {
	return max(0, time.Duration(seconds*float64(time.Second)).Round(time.Millisecond).Seconds())
}
