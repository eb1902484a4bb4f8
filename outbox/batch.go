package outbox

import (
	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/keyorder"
)

// A batch is the rows of a claim with the outcome of each.
type batch struct {
	*keyorder.PublishQueue
	rows []ClaimedRow
	took []int // buffer of take
}

// newBatch plans rows as keyorder.NewPublishQueue does.
func newBatch(rows []ClaimedRow, atomic bool) *batch {
	records := make([]*waybill.Record, len(rows))
	for i, row := range rows {
		records[i] = row.Record
	}
	return &batch{PublishQueue: keyorder.NewPublishQueue(records, atomic), rows: rows}
}

// take appends up to max items to publish now. Seq is the index of the row.
func (b *batch) take(max int, into []Item) []Item {
	b.took = b.Take(max, b.took[:0])
	for _, i := range b.took {
		into = append(into, Item{i, b.rows[i].Record})
	}
	return into
}

// finished returns the published rows, and the refused ones that are the heads of
// their keys. A refused row behind an unpublished one of its key is no failure: it is
// claimed again later.
func (b *batch) finished() (done []ClaimedRow, failed []Failure) {
	heads := b.heads()
	for i, row := range b.rows {
		switch state, err := b.Outcome(i); {
		case state == keyorder.Published:
			done = append(done, row)
		case state == keyorder.Refused && heads[i]:
			failed = append(failed, Failure{Row: row, Err: err})
		}
	}
	return done, failed
}

// heads marks the first unpublished row of each key, and each unpublished row without
// a key.
func (b *batch) heads() []bool {
	heads := make([]bool, len(b.rows))
	seen := map[string]bool{"": false}
	for i, row := range b.rows {
		if state, _ := b.Outcome(i); state != keyorder.Published {
			key := row.Record.Key
			heads[i] = !seen[key]
			seen[key] = key != ""
		}
	}
	return heads
}

// published, refused and unknown count the rows in that state.
func (b *batch) published() int { return b.count(keyorder.Published) }
func (b *batch) refused() int   { return b.count(keyorder.Refused) }
func (b *batch) unknown() int   { return b.count(keyorder.Unknown) }

func (b *batch) count(of keyorder.State) (n int) {
	for i := range b.rows {
		if state, _ := b.Outcome(i); state == of {
			n++
		}
	}
	return n
}
