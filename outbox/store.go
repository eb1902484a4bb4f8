package outbox

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
)

// A Store is the relay's side of the outbox of one database. Its methods may
// be called concurrently, also from other processes.
type Store interface {
	// Lead makes this process one that may relay the database; where only one
	// may (SQLite) and another does, it fails with waybill.ErrRelayRunning. The
	// returned function gives the right back.
	Lead(ctx context.Context) (release func(), err error)
	// Claim takes the oldest rows of a transport that are due, so that no other
	// relay has rows of the same keys until Settle. Rows of one key come in
	// commit order, without a gap in front, and the first of a blocked key only
	// when it is due. No rows and a nil error mean that nothing is due. A claim
	// with rows must be settled, also when nothing was published.
	Claim(ctx context.Context, transport string, max Max) (Claim, error)
	// Left counts what is in the outbox for a transport.
	Left(ctx context.Context, transport string) (Left, error)
	// Wake returns a channel that receives, after a commit in this process that
	// wrote rows for transport. Hints may be lost or needless.
	Wake(transport string) <-chan struct{}
}

// Max bounds a claim. A single row larger than Bytes is claimed alone.
type Max struct {
	Rows  int
	Bytes int
}

// A Claim is a set of rows that one relay has to itself.
type Claim interface {
	// Rows returns the claimed rows, in commit order.
	Rows() []ClaimedRow
	// Settle deletes the published rows, unblocks their keys, records the
	// failures and ends the claim, in one transaction. Rows in neither list stay.
	Settle(ctx context.Context, published []ClaimedRow, failed []Failure) error
}

// A ClaimedRow is one row to publish.
type ClaimedRow struct {
	ID       int64 // order of commit within the key
	Record   *waybill.Record
	Failures int // how often publishing it has failed
}

// A Failure blocks the row's key, or the row alone when it has none.
type Failure struct {
	Row     ClaimedRow
	Err     error
	RetryIn time.Duration // by the database's clock
}

// Left counts the rows of one transport.
type Left struct {
	Pending int // all rows, waiting or not, without the delayed
	Blocked int // of those, rows of blocked keys
	Delayed int // not yet due
}

// A Publisher hands records to one broker. Its methods may be called
// concurrently.
type Publisher interface {
	// Publish sends items in order and puts one Result for each, with its Seq,
	// into results, whose buffer has room for them: nil once the broker has
	// stored the record durably and routed it. It may return before the results
	// are in; when ctx ends, those that are not known are errors. An error that
	// wraps waybill.ErrUnavailable says that the broker could not be reached or
	// its answer was lost; any other that it refused that record.
	Publish(ctx context.Context, items []Item, results chan<- Result)
}

// An AtomicPublisher stores the items of one Publish call all or none, in
// order, so that several records of a key may be in one call.
type AtomicPublisher interface {
	Publisher
	PublishesAtomically()
}

// An Item is one record to publish.
type Item struct {
	Seq    int
	Record *waybill.Record
}

// A Result says what became of the item with the same Seq.
type Result struct {
	Seq int
	Err error
}
