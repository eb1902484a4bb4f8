package sqlcore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/worker"
)

// A RetryStore is the table of a database's retry queues, with its dead letters. Its
// errors are translated.
type RetryStore interface {
	ReceiverStore
	// Contains reports for pairs of an id and a key whether the queue has a message of the
	// id or of the key. An empty key is that of no message.
	Contains(ctx context.Context, queue string, ids []waybill.MessageID, keys []string) ([]bool, error)
	// Add stores rows in order and in one transaction. A message that the queue has already
	// stays as it is, and its row has no effect.
	Add(ctx context.Context, queue string, rows []RetryRow) error
	// Move applies rows in one transaction to the deliveries that are still leased to a
	// consumer, and returns these.
	Move(ctx context.Context, by Consumer, rows []RetryRow) (moved map[DeliveredRow]bool, err error)
	// Begin records that the handlers of a delivery are about to run. It returns how often
	// they had begun without an end, and ErrLeaseLost if the row has been leased again.
	Begin(ctx context.Context, by Consumer, row DeliveredRow) (crashes int, err error)
}

// A RetryRow is a worker.Move of values that every database accepts.
type RetryRow struct {
	Row         DeliveredRow // of Move
	Record      *waybill.Record
	Headers     string // of Record, as a JSON object
	Failures    int    // before this one
	Attempt     *worker.Attempt
	Delay       time.Duration
	Parked      bool
	DeadLetters string
}

// Retries implements worker.RetryQueue. It is safe for concurrent use.
type Retries struct {
	*receiver
	store RetryStore
}

var _ worker.RetryQueue = (*Retries)(nil)

// NewRetries returns a receiver of the retry queue of a transport. A lease of zero means
// the default. The wakes are not those of queues, which have names of their own.
func NewRetries(store RetryStore, wakes *Wakes, transport string, lease time.Duration) (*Retries, error) {
	r, err := newReceiver(store, wakes, transport, "retries "+transport, lease)
	if err != nil {
		return nil, err
	}
	return &Retries{r, store}, nil
}

// Receive implements waybill.Receiver.
func (q *Retries) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	ds, err := q.receiver.Receive(ctx, limit)
	for _, d := range ds {
		restore(d.Record)
	}
	return ds, err
}

// Retry implements waybill.Receiver. The attempt has no description.
func (q *Retries) Retry(ctx context.Context, d *waybill.Delivery, delay time.Duration) error {
	return q.Move(ctx, worker.Move{Delivery: d, Attempt: &worker.Attempt{At: time.Now()}, Delay: delay})
}

// Contains implements worker.RetryQueue.
func (q *Retries) Contains(ctx context.Context, ds ...*waybill.Delivery) (found []bool, err error) {
	if len(ds) == 0 {
		return nil, nil
	}
	ids, keys := make([]waybill.MessageID, len(ds)), make([]string, len(ds))
	for i, d := range ds {
		ids[i], keys[i] = d.Record.ID, text(d.Record.Key, maxKey)
	}
	err = q.do(ctx, "contains", func() error {
		found, err = q.store.Contains(ctx, q.self.Queue, ids, keys)
		return err
	})
	return found, err
}

// Add implements worker.RetryQueue.
func (q *Retries) Add(ctx context.Context, moves ...worker.Move) error {
	if len(moves) == 0 {
		return nil
	}
	rows, err := storable(moves)
	if err == nil {
		err = q.do(ctx, "add", func() error { return q.store.Add(ctx, q.self.Queue, rows) })
	}
	q.wakes.HintQueue(q.self.Queue)
	return err
}

// Move implements worker.RetryQueue.
func (q *Retries) Move(ctx context.Context, moves ...worker.Move) error {
	rows, err := storable(moves)
	ds := make([]*waybill.Delivery, len(moves))
	for i, m := range moves {
		ds[i] = m.Delivery
	}
	var lost []*waybill.Delivery
	if err == nil {
		lost, err = q.apply(ctx, ds, func(delivered []DeliveredRow) (map[DeliveredRow]bool, error) {
			for i := range rows {
				rows[i].Row = delivered[i]
			}
			return q.store.Move(ctx, q.self, rows)
		})
	}
	q.wakes.HintQueue(q.self.Queue) // the next messages of a dead letter's key may be delivered now
	return q.outcome("move", len(moves), lost, err)
}

// Begin implements worker.RetryQueue.
func (q *Retries) Begin(ctx context.Context, d *waybill.Delivery) (crashes int, err error) {
	err = q.do(ctx, "begin "+d.Record.ID.String(), func() error {
		row, err := tagOf(d)
		if err == nil {
			crashes, err = q.store.Begin(ctx, q.self, row)
		}
		return err
	})
	return crashes, err
}

// do runs fn on usable tables.
func (q *Retries) do(ctx context.Context, verb string, fn func() error) error {
	err := q.store.Ready(ctx)
	if err == nil {
		err = fn()
	}
	if err != nil {
		return fmt.Errorf("retry queue of %s: %s: %w", q.self.Queue, verb, err)
	}
	return nil
}
