package sqlcore

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// RetryFailed takes failed messages in ascending order, so that two operators cannot
// deadlock, and writes each to the outbox. take removes an entry and returns its row and
// headers, or sql.ErrNoRows if another operator was quicker.
func RetryFailed(numbers []int64, take func(number int64) (row outbox.Row, meta string, err error), write func(outbox.Row) error) (n int, err error) {
	for _, number := range slices.Sorted(slices.Values(numbers)) {
		row, meta, err := take(number)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err == nil {
			err = headers.Decode(row.Record, meta)
		}
		if err == nil {
			err = write(row)
		}
		if err != nil {
			return n, fmt.Errorf("failed message %d: %w", number, err)
		}
		n++
	}
	return n, nil
}

// AsNew makes another message of a skipped one, with its id as causation id.
func AsNew(rec *waybill.Record) (err error) {
	if rec.Headers == nil {
		rec.Headers = map[string]string{}
	}
	delete(rec.Headers, waybill.HeaderHandledBy)
	rec.Headers[waybill.HeaderCausationID] = rec.ID.String()
	rec.DispatchedAt = time.Now().UTC()
	rec.ID, err = waybill.NewMessageID()
	return err
}

// Prune calls remove until a batch is not full, and reports each batch to progress if
// that is not nil.
func Prune(batch int, progress func(int), remove func() (int, error)) (total int, err error) {
	for {
		n, err := remove()
		if err != nil {
			return total, fmt.Errorf("inbox prune: %w", err)
		}
		total += n
		if progress != nil {
			progress(n)
		}
		if n < batch {
			return total, nil
		}
	}
}

// Age rounds an age in seconds to milliseconds; a clock that went back makes none
// negative.
func Age(seconds float64) float64 {
	return max(0, time.Duration(seconds*float64(time.Second)).Round(time.Millisecond).Seconds())
}
