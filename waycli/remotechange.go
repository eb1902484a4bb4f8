package waycli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// RetryFailed implements admin.Database.
func (r *remote) RetryFailed(ctx context.Context, numbers ...int64) (int, error) {
	return r.change(ctx, "failed/retry", withNumbers(url.Values{}, numbers))
}

// RetryFailedAsNew implements admin.DeadLetters.
func (r *remote) RetryFailedAsNew(ctx context.Context, numbers ...int64) (int, error) {
	return r.change(ctx, "failed/retry", withNumbers(url.Values{"as_new": {"true"}}, numbers))
}

// RemoveFailed implements admin.Database.
func (r *remote) RemoveFailed(ctx context.Context, numbers ...int64) (int, error) {
	return r.change(ctx, "failed/remove", withNumbers(url.Values{}, numbers))
}

// errStopAfterRemote refuses --stop-after-failures, which the API does not cover.
var errStopAfterRemote = &Error{Usage, errors.New("--stop-after-failures with --server: the API does not cover it"), "the dashboard shows what has failed again, and cancels"}

// FailedAgain implements admin.DeadLetters.
func (r *remote) FailedAgain(context.Context, ...admin.FailedMessage) (int, error) {
	return 0, errStopAfterRemote
}

// operationEvery is how often the end of an operation is looked for.
const operationEvery = 100 * time.Millisecond

// change counts a change of dead letters, begins it, and returns how many it has changed
// when it has ended. None that can be changed is no error, as of a database.
func (r *remote) change(ctx context.Context, path string, form url.Values) (int, error) {
	var counted struct {
		Count int `json:"count"`
	}
	if err := r.call(ctx, path, nil, form, &counted); errors.Is(err, waybill.ErrNotFound) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	form.Set("count", strconv.Itoa(counted.Count))
	var op struct {
		ID      int    `json:"id"`
		State   string `json:"state"`
		Done    int    `json:"done"`
		Problem string `json:"problem"`
	}
	err := r.call(ctx, path, nil, form, &op)
	for err == nil && op.State == "running" {
		select {
		case <-ctx.Done():
			return op.Done, ctx.Err()
		case <-time.After(operationEvery):
		}
		err = r.call(ctx, "operations/"+strconv.Itoa(op.ID), nil, nil, &op)
	}
	if err == nil && op.State != "done" {
		err = fmt.Errorf("--server: operation %d: %s %s", op.ID, op.State, visible(op.Problem))
	}
	return op.Done, err
}

// EditFailed implements admin.DeadLetters.
func (r *remote) EditFailed(ctx context.Context, number int64, from, to []byte) error {
	sum := sha256.Sum256(from)
	var answer struct{}
	return r.call(ctx, fmt.Sprintf("failed/%d/edit", number), nil, url.Values{"hash": {hex.EncodeToString(sum[:])}, "body": {string(to)}}, &answer)
}

// Release implements admin.Database.
func (r *remote) Release(ctx context.Context, q admin.BlockedQuery) (int, error) {
	form := set(url.Values{}, "transport", q.Transport, "key", q.Key, "route", q.Route)
	switch {
	case q.Row != 0:
		form.Set("row", strconv.FormatInt(q.Row, 10))
	case q.Key == "" && q.Route == "":
		form.Set("all", "true")
	}
	if q.SkipHead {
		form.Set("skip_head", "true")
	}
	return r.change(ctx, "blocked/release", form)
}

// ReleaseRetries implements admin.Retries.
func (r *remote) ReleaseRetries(ctx context.Context, transport, key string) (int, error) {
	return r.change(ctx, "retries/release", set(url.Values{}, "transport", transport, "key", key))
}

// SkipParked implements admin.Retries. The failure transport is that of the server's
// configuration.
func (r *remote) SkipParked(ctx context.Context, transport, key, _ string) (int, error) {
	return r.change(ctx, "retries/release", set(url.Values{"skip_head": {"true"}}, "transport", transport, "key", key))
}

// StopWorkers implements admin.Workers. A process that has ended is not counted.
func (r *remote) StopWorkers(ctx context.Context, ids ...string) (n int, err error) {
	for _, id := range ids {
		var answer struct{}
		err := r.call(ctx, "workers/"+url.PathEscape(id)+"/stop", nil, url.Values{}, &answer)
		switch {
		case err == nil:
			n++
		case !errors.Is(err, waybill.ErrNotFound):
			return n, err
		}
	}
	return n, nil
}

// TriggerSchedule implements admin.Schedules.
func (r *remote) TriggerSchedule(ctx context.Context, name string) (requested time.Time, added bool, err error) {
	var answer struct {
		Requested   bool      `json:"requested"`
		RequestedAt time.Time `json:"requested_at"`
	}
	err = r.call(ctx, "schedules/trigger", nil, url.Values{"name": {name}}, &answer)
	return answer.RequestedAt, answer.Requested, err
}

// PauseTransport implements admin.Workers.
func (r *remote) PauseTransport(ctx context.Context, transport, reason string) (bool, error) {
	var answer struct {
		Changed bool `json:"changed"`
	}
	err := r.call(ctx, "workers/pause", nil, set(url.Values{}, "transport", transport, "reason", reason), &answer)
	return answer.Changed, err
}

// ResumeTransport implements admin.Workers.
func (r *remote) ResumeTransport(ctx context.Context, transport string) (bool, error) {
	var answer struct {
		Changed bool `json:"changed"`
	}
	err := r.call(ctx, "workers/resume", nil, set(url.Values{}, "transport", transport), &answer)
	return answer.Changed, err
}
