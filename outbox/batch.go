package outbox

import (
	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/chain"
	"github.com/waybill-go/waybill/internal/mutant"
)

// A batch is the rows of a claim, and what has become of them.
type batch struct {
	*chain.Chains
	rows []ClaimedRow
	took []int
}

// newBatch plans rows: see chain.New.
func newBatch(rows []ClaimedRow, atomic bool, alone []int) *batch {
	records := make([]*waybill.Record, len(rows))
	for i, row := range rows {
		records[i] = row.Record
		if mutant.Active(mutant.IDFromRelay) {
			row.Record.ID, _ = waybill.NewMessageID()
		}
	}
	return &batch{chain.New(records, atomic, alone), rows, nil}
}

// take appends up to max items to publish now. Seq is the index of the row.
func (b *batch) take(max int, into []Item) []Item {
	b.took = b.Take(max, b.took[:0])
	for _, i := range b.took {
		into = append(into, Item{i, b.rows[i].Record})
	}
	return into
}

// finished returns the published rows and the refused ones, of each key the first:
// one behind it that was on its way, too, is tried again after it, and is not the
// key's head.
func (b *batch) finished() (done []ClaimedRow, failed []Failure) {
	refused := map[string]bool{}
	for i, row := range b.rows {
		switch state, err := b.Outcome(i); state {
		case chain.Published:
			done = append(done, row)
		case chain.Refused:
			key := row.Record.Key
			if !refused[key] {
				failed = append(failed, Failure{Row: row, Err: err})
			}
			refused[key] = key != ""
		}
	}
	return done, failed
}
