package dashboard

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// Operation is the state of one change of many messages, which runs in the background of
// this process.
type Operation struct {
	ID      int        `json:"id"`
	Kind    string     `json:"kind"` // the command: "failed retry", "failed remove" or "outbox release"
	By      string     `json:"by"`
	What    string     `json:"what"`  // its selection
	Total   int        `json:"total"` // counted before it began
	Tried   int        `json:"tried"`
	Done    int        `json:"done"`               // of those tried; another operator was quicker with the rest
	Again   int        `json:"failed_again"`       // of the first thousand retried, by now
	Rate    float64    `json:"rate,omitempty"`     // messages a second; zero means no limit
	State   string     `json:"state"`              // running, done, cancelled or failed
	Problem string     `json:"problem,omitempty"`  // of a failed one
	Begun   time.Time  `json:"begun_at"`           //
	Ended   *time.Time `json:"ended_at,omitempty"` //

	retried []admin.FailedMessage // the first thousand
}

// The states of an operation.
const (
	running   = "running"
	finished  = "done"
	cancelled = "cancelled"
	broken    = "failed"
)

// Percent is how much of it is done, from 0 to 100.
func (o Operation) Percent() int {
	if o.Total == 0 {
		return 100
	}
	return min(100, o.Tried*100/o.Total)
}

// Left is how many have not been tried.
func (o Operation) Left() int { return max(0, o.Total-o.Tried) }

// Skipped is how many of those tried another operator has changed before.
func (o Operation) Skipped() int { return o.Tried - o.Done }

// Took is how many seconds it has run.
func (o Operation) Took() float64 {
	if o.Ended == nil {
		return time.Since(o.Begun).Seconds()
	}
	return o.Ended.Sub(o.Begun).Seconds()
}

// Speed is how many messages a second were tried.
func (o Operation) Speed() float64 {
	if s := o.Took(); s > 0 {
		return float64(o.Tried) / s
	}
	return 0
}

// operations are the operations of this process, the newest last.
type operations struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	last    int                        // guarded by mu, as are all below
	all     []*Operation               //
	cancels map[int]context.CancelFunc // of running ones
}

// keptOperations bounds the memory of the ended ones, runningOperations the running ones.
const (
	keptOperations    = 100
	runningOperations = 10
)

func newOperations() *operations {
	ctx, cancel := context.WithCancel(context.Background())
	return &operations{ctx: ctx, cancel: cancel, cancels: map[int]context.CancelFunc{}}
}

func (o *operations) close() {
	o.cancel()
	o.wg.Wait()
}

// start runs fn in the background as the operation op. It reports progress by changing the
// Operation inside of update.
func (o *operations) start(op Operation, log *slog.Logger, fn func(ctx context.Context, update func(func(*Operation))) error) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ctx.Err() != nil || len(o.cancels) >= runningOperations {
		return 0, &Error{http.StatusServiceUnavailable, "too many operations are running", "wait for one, or cancel it"}
	}
	o.last++
	op.ID, op.State, op.Begun = o.last, running, time.Now().UTC()
	kept := &op
	o.all = append(o.all, kept)
	if len(o.all) > keptOperations {
		i := slices.IndexFunc(o.all, func(p *Operation) bool { return p.State != running })
		o.all = slices.Delete(o.all, i, i+1)
	}
	ctx, cancel := context.WithCancel(o.ctx)
	o.cancels[op.ID] = cancel
	update := func(change func(*Operation)) {
		o.mu.Lock()
		defer o.mu.Unlock()
		change(kept)
	}
	o.wg.Go(func() {
		err := fn(ctx, update)
		if err != nil && ctx.Err() == nil {
			log.LogAttrs(ctx, slog.LevelError, "dashboard operation failed", slog.Int("operation", op.ID), slog.String("kind", op.Kind), slog.Any("err", err))
		}
		update(func(op *Operation) {
			now := time.Now().UTC()
			op.Ended, op.State = &now, finished
			switch {
			case err != nil && ctx.Err() != nil:
				op.State = cancelled
			case err != nil:
				op.State, op.Problem = broken, problemOf(err).Problem
			}
			delete(o.cancels, op.ID)
		})
		cancel()
	})
	return op.ID, nil
}

// list returns the operations, the newest first.
func (o *operations) list() []Operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := []Operation{}
	for _, op := range slices.Backward(o.all) {
		all = append(all, *op)
	}
	return all
}

func (o *operations) find(id string) (Operation, error) {
	for _, op := range o.list() {
		if strconv.Itoa(op.ID) == id {
			return op, nil
		}
	}
	return Operation{}, &Error{http.StatusNotFound, "there is no operation " + id, "operations are kept until the dashboard restarts; the audit has what they changed"}
}

// stop cancels the operation of that number, if it runs.
func (o *operations) stop(id int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cancel := o.cancels[id]; cancel != nil {
		cancel()
	}
}

// startRelease begins a release of total entries in the background, one at a time and beside the
// pages: it has a transaction for each few hundred messages, and waits for relays between them.
func (d *Dashboard) startRelease(r *request, kind string, filter any, total int, release func(ctx context.Context) (int, error)) (int, error) {
	text, _ := json.Marshal(filter) // strings and a number
	action := r.action(text)
	return d.operations.start(Operation{Kind: kind, By: action.Actor, What: string(text), Total: total}, d.log,
		func(ctx context.Context, update func(func(*Operation))) error {
			done, err := acquire(ctx, d.releases)
			if err != nil {
				return err
			}
			defer done()
			n, err := release(admin.WithAction(ctx, action))
			update(func(op *Operation) {
				if op.Tried, op.Done = n, n; err == nil {
					op.Tried = max(n, op.Total)
				}
			})
			return err
		})
}

const (
	batchSize    = 100
	batchTimeout = 30 * time.Second // of one transaction
)

// batches changes the dead letters that q selects by do, some at a time, so that each
// transaction is short. Each is tried once: one that fails again has a later time than
// q.Until.
func (d *Dashboard) batches(ctx context.Context, q admin.FailedQuery, rate float64, do func(ctx context.Context, numbers ...int64) (int, error), update func(func(*Operation))) error {
	q.Limit = batchSize
	if rate > 0 {
		q.Limit = min(max(int(rate), 1), batchSize)
	}
	for first := true; ; first = false {
		if !first && rate > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(float64(q.Limit) / rate * float64(time.Second))):
			}
		}
		if more, err := d.batch(ctx, &q, do, update); err != nil || !more {
			return err
		}
	}
}

// batch changes the next messages of q.
func (d *Dashboard) batch(ctx context.Context, q *admin.FailedQuery, do func(ctx context.Context, numbers ...int64) (int, error), update func(func(*Operation))) (more bool, err error) {
	release, err := acquire(ctx, d.slots)
	if err != nil {
		return false, err
	}
	defer release()
	// A batch that has begun ends: a cancelled commit would leave its result unknown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
	defer cancel()
	found, err := d.db.Failed(ctx, *q)
	if err != nil || len(found) == 0 {
		return false, err
	}
	q.After = found[len(found)-1].Number
	more = len(found) == q.Limit
	found = slices.DeleteFunc(found, func(m admin.FailedMessage) bool { return !changeable(m) })
	if len(found) == 0 {
		return more, nil
	}
	numbers := make([]int64, len(found))
	for i, m := range found {
		numbers[i] = m.Number
	}
	n, err := do(ctx, numbers...)
	if err != nil {
		return false, err
	}
	update(func(op *Operation) {
		op.Tried, op.Done = op.Tried+len(numbers), op.Done+n
		if op.Kind == retryKind && len(op.retried) < maxPage {
			op.retried = append(op.retried, found...)
		}
	})
	return more, nil
}

// changeable reports whether m can be retried, edited and removed.
func changeable(m admin.FailedMessage) bool {
	return m.State == admin.Skipped || m.State == admin.Failed
}
