package outbox

import (
	"slices"
	"testing"

	"github.com/waybill-go/waybill"
)

// What is behind a refused message of its key, and was on its way already, is not
// the key's head: it is not blamed, or it would be parked ahead of the head.
func TestOfEachKeyTheFirstRefusalCounts(t *testing.T) {
	var rows []ClaimedRow
	for i, key := range []string{"k", "", "k", "l", ""} {
		rows = append(rows, ClaimedRow{ID: int64(i), Record: &waybill.Record{Key: key}})
	}
	b := newBatch(rows, false, nil)
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
}
