package outbox

import (
	"slices"
	"testing"

	"github.com/waybill-go/waybill"
)

// A refused row behind an unpublished one of its key is not the key's head: blocked as
// such, it would be retried ahead of the head.
func TestOnlyHeadsOfKeysFail(t *testing.T) {
	var rows []ClaimedRow
	for i, key := range []string{"k", "", "k", "l", ""} {
		rows = append(rows, ClaimedRow{ID: int64(i), Record: &waybill.Record{Key: key}})
	}
	b := newBatch(rows, false)
	b.Pipeline(func(*waybill.Record) string { return "" })
	for _, item := range b.take(len(rows), nil) {
		b.Done(item.Seq, errRefused)
	}
	var got []int64
	_, failed := b.finished()
	for _, f := range failed {
		got = append(got, f.Row.ID)
	}
	if want := []int64{0, 1, 3, 4}; !slices.Equal(got, want) {
		t.Errorf("refused: rows %v, want %v", got, want)
	}

	b = newBatch(rows, false)
	b.Pipeline(func(*waybill.Record) string { return "" })
	for _, item := range b.take(len(rows), nil) {
		if item.Seq == 2 {
			b.Done(item.Seq, errRefused)
		} else {
			b.Done(item.Seq, &ConnectionLostError{Err: errReset, CausedByMessage: true})
		}
	}
	if _, failed := b.finished(); len(failed) > 0 {
		t.Errorf("%d refused rows fail, want none: the only one has an unknown one of its key before it", len(failed))
	}
	got = nil
	for _, f := range newPoisonDetector().observe(b) {
		got = append(got, f.Row.ID)
	}
	if want := []int64{0, 1, 3, 4}; !slices.Equal(got, want) {
		t.Errorf("suspects: rows %v, want %v", got, want)
	}
}
