package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
)

// ErrBucketsChanged says that the number of the outbox's buckets was changed
// while a transaction was open that dispatches. Nothing of it was committed; it
// may be run again.
var ErrBucketsChanged = errors.New("the number of buckets of the outbox was changed meanwhile: run the transaction again")

// A Store is the relay's side of the outbox of one database. Its methods may
// be called concurrently, also from other processes.
type Store interface {
	// Lead makes this process one that may relay the database; where only one
	// may (SQLite) and another does, it fails with waybill.ErrRelayRunning. The
	// returned function gives the right back.
	Lead(ctx context.Context) (release func(), err error)
	// Claim takes rows of one part of a transport, so that no other relay has them
	// until Settle. No rows and a nil error mean that nothing is due, or that ctx
	// left no time to read past all that waits: the next claim goes on there. A
	// claim with rows must be settled, also when nothing was published.
	Claim(ctx context.Context, transport string, part Part, limit ClaimLimit) (Claim, error)
	// Left counts the rows of the outbox for a transport.
	Left(ctx context.Context, transport string) (Left, error)
	// Wake returns a channel that receives, after a commit in this process that
	// wrote rows for transport; of a ListeningStore also in other processes. Hints
	// may be lost or needless.
	Wake(transport string) <-chan struct{}
}

// A Part is one of the kinds of rows of a transport, each claimed apart.
type Part int

const (
	// Keyed rows have a key that is not blocked. Rows of one key come in commit
	// order, without a gap in front, and to one relay at a time. Rows of a blocked
	// route stay, and so does what follows them in their keys.
	Keyed Part = iota
	// Unkeyed rows have no key and were not refused before. They have no order.
	Unkeyed
	// Retries are due rows that were refused before: of each blocked key the head,
	// of each blocked route the row that stands for it, and each refused row
	// without a key.
	Retries
)

func (p Part) String() string { return [...]string{"keyed", "unkeyed", "retries"}[p] }

// ClaimLimit bounds a claim. A single row larger than Bytes is claimed alone.
type ClaimLimit struct {
	Rows  int
	Bytes int
}

// A Claim is a set of rows that one relay has to itself.
type Claim interface {
	// Rows returns the claimed rows, in commit order.
	Rows() []ClaimedRow
	// Settle deletes the published rows, unblocks those that were Retries, records
	// the failures and ends the claim, in one transaction. Rows in neither list
	// stay. A row is known by its Record.
	Settle(ctx context.Context, published []ClaimedRow, failed []Failure) error
}

// A ClaimedRow is one row to publish.
type ClaimedRow struct {
	ID       int64 // order of commit within the key
	Record   *waybill.Record
	Failures int // how often publishing it has failed; of Retries only
	// Route says that the row stands for its blocked route, and Failures are the
	// route's.
	Route bool
}

// A Failure blocks the row's key, or the row alone when it has none.
type Failure struct {
	Row     ClaimedRow
	Err     error
	RetryIn time.Duration // by the database's clock
	// Route blocks all rows with the record's name instead, and what follows
	// them in their keys, until one of them is published. It is set for a
	// RouteStore only, and is true for a row that stands for its route.
	Route bool
	// Suspect says that the row may have been the cause of lost connections: it is
	// blocked, so that it is tried among the Retries, and not counted as a failure.
	Suspect bool
	// Policy is told to whoever asks what is blocked. Exhausted says that it is to
	// be followed now; it is set for a FailureStore only, and not with Block.
	Policy    Policy
	Exhausted bool
}

// Parks reports whether the failure parks its key: a message without one has
// nothing behind it.
func (f Failure) Parks() bool { return f.Exhausted && f.Policy == Park && f.Row.Record.Key != "" }

// Skips reports whether the failure moves its message to the failure store.
func (f Failure) Skips() bool { return f.Exhausted && !f.Parks() }

// A Policy says what becomes of a key, or of a message without one, that was
// refused as often as RelayConfig.MaxAttempts allows.
type Policy string

const (
	// Block goes on trying at the longest delay: the key waits until its head gets
	// through.
	Block Policy = "block"
	// Park sets the rows of the key aside and tries no more. What is dispatched
	// later waits behind them, until an operator releases the key. A message
	// without key is skipped.
	Park Policy = "park"
	// Skip moves the refused message to the failure store, and its key goes on
	// without it.
	Skip Policy = "skip"
)

// ParkedBuckets is the distance between a bucket and the one in which the rows of
// its parked keys are set aside.
const ParkedBuckets = MaxBuckets

// A FailureStore is a Store that can park keys and keeps skipped messages.
type FailureStore interface {
	Store
	KeepsFailures()
}

// A RouteStore is a Store that can block a route: when nothing of a message
// name can be delivered, that is one entry, and not one for each key.
type RouteStore interface {
	Store
	BlocksRoutes()
}

// A Reporter is a Store that keeps what relays say of themselves, for those who
// look after them.
type Reporter interface {
	Store
	// Report is called every few seconds, at each change and at the end.
	Report(ctx context.Context, r Report) error
}

// A ListeningStore is a Store that can hear of commits in other processes.
type ListeningStore interface {
	Store
	// Deaf says in one line why it does not hear of them although it is to, so
	// that only polling finds them. Empty means that nothing is amiss.
	Deaf() string
}

// A Report is what a relay says of itself.
type Report struct {
	Relay     uuid.UUID // one run of one relay
	Transport string
	Problem   string // why nothing can go out; empty when nothing is in the way
	Degraded  string // why messages go out later than they could; see ListeningStore
	Ended     bool
}

// Left counts the rows of one transport.
type Left struct {
	Pending int // all rows, waiting or not, without the delayed
	Blocked int // of those, rows that are parked, or whose key or route is blocked and not due
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

// An OrderedPublisher keeps the order of the records of a stream within one
// Publish call: of those that the broker does not refuse, what is stored is
// stored in the order of the items, and if the connection ends, nothing without
// what was before it.
type OrderedPublisher interface {
	Publisher
	// Stream names the one that a record belongs to.
	Stream(*waybill.Record) string
}

// A ConnectingPublisher is a Publisher that keeps a connection. After an outage
// a relay claims nothing until there is one again.
type ConnectingPublisher interface {
	Publisher
	// Connect connects, unless there is a connection that was alive just now.
	Connect(ctx context.Context) error
}

// A HeartbeatPublisher is a Publisher whose broker drops its connection when it
// has been silent for three heartbeats: what a frozen relay had in its hands
// cannot be published after that.
type HeartbeatPublisher interface {
	Publisher
	Heartbeat() time.Duration
}

// An IsolatingPublisher is a Publisher that can publish over a connection of its
// own, so that a message for which the broker ends the connection, or on which it
// stays silent, does not touch the others. A relay sends its retries there, one
// at a time. Isolated is called once; the returned Publisher ends with the
// IsolatingPublisher.
type IsolatingPublisher interface {
	Publisher
	Isolated() Publisher
}

// An IdleStore is a Store that takes a claim away from a relay that has been
// silent for the idle timeout.
type IdleStore interface {
	Store
	IdleTimeout() time.Duration
}

// An UnroutableError says that the broker has nowhere to put a record: no queue
// is bound for it, the exchange does not exist or is forbidden. All records of
// the same name will fare alike.
type UnroutableError struct {
	Exchange, RoutingKey string
	Reason               string // the broker's words
}

func (e *UnroutableError) Error() string {
	return fmt.Sprintf("exchange %q, routing key %q: %s", e.Exchange, e.RoutingKey, e.Reason)
}

// A RejectedError says that the broker took the record and rejected it
// (basic.nack), as a queue does that is full: it is tried again soon, and as often
// as it takes.
type RejectedError struct {
	Reason string // in the broker's or the publisher's words
}

func (e *RejectedError) Error() string { return e.Reason }

// An UnconfirmedError says that the broker has not answered for a record, although
// it has confirmed records on the same connection that were sent no earlier. It may
// or may not have been stored.
type UnconfirmedError struct {
	Exchange, RoutingKey string
	After                time.Duration // since it was sent
}

func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("exchange %q, routing key %q: not confirmed after %v, while others were", e.Exchange, e.RoutingKey, e.After.Round(time.Millisecond))
}

// A CutError says that the connection ended while the record was in flight, and
// perhaps because of it: it may or may not have been stored. It wraps
// waybill.ErrUnavailable.
type CutError struct {
	Err error
	// Blamed says that the broker closed the connection or channel because of
	// something in flight.
	Blamed bool
}

func (e *CutError) Error() string {
	return "connection lost with the message in flight: " + e.Err.Error()
}

// Unwrap returns waybill.ErrUnavailable and Err.
func (e *CutError) Unwrap() []error { return []error{waybill.ErrUnavailable, e.Err} }

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
