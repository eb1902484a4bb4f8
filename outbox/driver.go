package outbox

// This file is the contract of a database (Writer, Store, Claim) and of a broker
// (Publisher). Package waytest tests databases against it.
//
// Each method is obligatory, so that a decorator that embeds the interface keeps all
// abilities; traits say where databases and brokers differ. An error that wraps
// waybill.ErrUnavailable means that the database or broker could not be reached; it is
// no failure of a message. A relay logs other errors and calls again. Records and slices
// that are passed in belong to the caller again at return, unless a comment says more.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
)

// A Writer writes to the outbox of one database in transactions of type TX. Its
// methods may be called concurrently, but not for one transaction.
type Writer[TX any] interface {
	// AddTransports registers names with the outbox. It is called once, before
	// any Write, outside a transaction.
	AddTransports(ctx context.Context, names ...string) error
	// InTx runs fn in a transaction, a unit of work: rows written to tx are kept
	// and flushed as its last statements, then it commits. An error of fn rolls
	// it back and is returned. A unit of work inside another one of the same
	// database is refused with waybill.ErrNestedTransaction; a commit whose result was
	// lost is a *waybill.CommitUnknownError.
	InTx(ctx context.Context, fn func(ctx context.Context, tx TX) error) error
	// Write adds rows to tx. In a unit of work they wait for its end, in any
	// other transaction they are inserted at once. A number of buckets that was
	// changed meanwhile is ErrBucketsChanged.
	Write(ctx context.Context, tx TX, rows ...Row) error
	// LockUnique makes others wait that lock the same key, until tx ends, and returns the
	// message that has the key: one whose time is not over by the database's clock, or one
	// written to tx before. The zero id says that there is none; Write then gives the key
	// to the row with it, together with the row. A key alone is no commitment: if rows of
	// tx are lost, its keys are free.
	LockUnique(ctx context.Context, tx TX, key string) (waybill.MessageID, error)
	// Savepoint runs fn between a savepoint of tx and its release; an error of
	// fn undoes all statements and writes since, and is returned.
	Savepoint(ctx context.Context, tx TX, fn func(ctx context.Context) error) error
}

// A Row is a record on its way into one transport.
type Row struct {
	Record    *waybill.Record
	Transport string
	// Queue is set when the transport is a queue of the same database: the row
	// goes there at once and no relay is involved.
	Queue string
	// Unique is the key that the record takes with this row; nil means none. LockUnique
	// precedes its Write.
	Unique *UniqueKey
}

// ErrBucketsChanged reports that the outbox's number of buckets was changed during a
// transaction that dispatches. It must be rolled back, and may be run again.
var ErrBucketsChanged = errors.New("the number of buckets of the outbox was changed meanwhile: run the transaction again")

// A Store is the relay's side of the outbox of one database. Its methods may
// be called concurrently, also from other processes.
type Store interface {
	// Traits returns the same value at each call.
	Traits() StoreTraits
	// StartRelay acquires the right to relay the database. Where only one process may
	// hold it (SQLite) and another does, it fails with waybill.ErrRelayRunning. The
	// returned function releases it, after the last claim was settled. Claims may also
	// be made without it, by tests.
	StartRelay(ctx context.Context) (release func(), err error)
	// Claim reserves rows of one part of a transport for this relay until Settle, or
	// until the connection ends or was idle for the idle timeout. No rows and a nil
	// error mean that none is due, or that ctx left no time to read past blocked rows:
	// the next claim continues behind them. A claim with rows is settled once, also when
	// no row was published; one without rows need not be.
	Claim(ctx context.Context, transport string, part Part, limit ClaimLimit) (Claim, error)
	// Backlog counts the rows of the outbox for a transport. A name that was never
	// registered has none.
	Backlog(ctx context.Context, transport string) (Backlog, error)
	// Transports lists the registered transports of the outbox: see Writer.AddTransports.
	Transports(ctx context.Context) ([]string, error)
	// Wake returns a channel that receives after commits of rows of a part, Keyed or
	// Unkeyed, for transport in this process; in all processes where the database
	// notifies. Hints may be lost or needless.
	Wake(transport string, part Part) <-chan struct{}
	// ListenError returns, in one line, why notifications of commits in other processes
	// are enabled and do not arrive, so that only polling finds these. Otherwise it is
	// empty. It does not wait for the database.
	ListenError() string
	// Report stores the state of a relay for operators: every few seconds, at each
	// change and at the end. It is called only with KeepsReports.
	Report(ctx context.Context, r Report) error
}

// StoreTraits are the differences between databases.
type StoreTraits struct {
	// IdleTimeout is the silence after which the database takes a claim from its relay;
	// see CheckFence. Zero means that it never does, and that one process relays at a
	// time, with one claim of each part.
	IdleTimeout time.Duration
	// BlocksRoutes allows Failure.Route: an undeliverable message name takes one
	// blocked entry, not one for each key.
	BlocksRoutes bool
	// KeepsReports means that Report stores reports.
	KeepsReports bool
}

// A Part is a kind of rows of a transport. Each kind is claimed separately.
type Part int

const (
	// Keyed rows have a key that is not blocked. Rows of one key come in commit
	// order, without a gap in front, and to one relay at a time. Rows of a blocked
	// route, and later rows of their keys, are not claimed.
	Keyed Part = iota
	// Unkeyed rows have no key, and neither they nor their route is blocked. They
	// have no order.
	Unkeyed
	// Retries are the due rows of earlier failures: the head of each blocked key, one
	// row for each blocked route, and each blocked row without a key.
	Retries
)

func (p Part) String() string { return [...]string{"keyed", "unkeyed", "retries"}[p] }

// ClaimLimit bounds a claim. A single row larger than Bytes is claimed alone.
type ClaimLimit struct {
	Rows  int
	Bytes int
}

// A Claim is a set of rows reserved for one relay.
type Claim interface {
	// Rows returns the claimed rows, in commit order.
	Rows() []ClaimedRow
	// Settle deletes the published rows, unblocks the keys and routes of published
	// Retries, records the failures and ends the claim, in one transaction. Rows in
	// neither list stay. Both lists hold rows of Rows, with the same Record pointers.
	Settle(ctx context.Context, published []ClaimedRow, failed []Failure) error
}

// A ClaimedRow is one row to publish.
type ClaimedRow struct {
	ID       int64 // order of commit within the key
	Record   *waybill.Record
	Failures int // how often publishing it has failed; of Retries only
	// Route marks the row that is retried for its whole blocked route; Failures are
	// then the route's.
	Route bool
}

// A Failure blocks the row's key, or the row alone when it has none.
type Failure struct {
	Row     ClaimedRow
	Err     error
	RetryIn time.Duration // by the database's clock
	// Route blocks all rows with the record's name instead, and later rows of their
	// keys, until one of them is published. It is set with
	// StoreTraits.BlocksRoutes only, and always for a ClaimedRow with Route.
	Route bool
	// Suspect marks a row that may have caused lost connections: it is blocked, to be
	// retried in isolation among the Retries, and not counted as a failure.
	Suspect bool
	// Policy is stored with the blocked entry, for operators. Exhausted applies it
	// now; it is never set with Block.
	Policy    Policy
	Exhausted bool
}

// Parks reports whether the failure parks its key. A message without a key is skipped
// instead.
func (f Failure) Parks() bool { return f.Exhausted && f.Policy == Park && f.Row.Record.Key != "" }

// Skips reports whether the failure makes its message a dead letter.
func (f Failure) Skips() bool { return f.Exhausted && !f.Parks() }

// A Policy is the treatment of a key, or of a message without one, after
// RelayConfig.MaxAttempts refusals.
type Policy string

const (
	// Block keeps retrying at the longest delay: the key stays blocked until its head
	// is published.
	Block Policy = "block"
	// Park moves the rows of the key aside and stops retrying. Messages dispatched
	// later wait behind them, until an operator releases the key. A message without
	// a key is skipped.
	Park Policy = "park"
	// Skip makes the refused message a dead letter, and its key continues without it.
	Skip Policy = "skip"
)

// ParkedBuckets is the offset from a bucket to the bucket of its parked rows.
const ParkedBuckets = MaxBuckets

// A Report is the state of one relay.
type Report struct {
	Relay     uuid.UUID // one run of one relay
	Transport string
	Problem   string // why it cannot publish; empty if it can
	Degraded  string // why it publishes later than it could: Store.ListenError
	Ended     bool
}

// A Backlog is the number of rows of one transport.
type Backlog struct {
	Pending int // all rows, blocked or not, and the delayed ones that were refused
	Blocked int // subset of Pending: parked, refused while delayed, or with a blocked key or route that is not due
	Delayed int // not yet due
}

// A Publisher hands records to one broker. Its methods may be called
// concurrently.
type Publisher interface {
	// Traits returns the same value at each call.
	Traits() PublisherTraits
	// Publish sends items in order and puts one Result for each, with its Seq,
	// into results, whose buffer has room for them: nil once the broker has
	// stored the record durably and routed it. It may return before the results
	// are in; when ctx ends, missing results become errors. An error wraps
	// waybill.ErrUnavailable if the broker could not be reached or its answer was
	// lost; any other error means that the broker refused the record. The error types
	// below make a relay treat the record accordingly.
	Publish(ctx context.Context, items []Item, results chan<- Result)
	// Connect connects, unless a connection is known to be alive. The first one fails
	// also if its exchange or queue does not exist. A relay claims no rows until it
	// succeeds, at its start and after an outage. It returns nil where there is no connection.
	Connect(ctx context.Context) error
	// Isolated returns a publisher with a separate connection for retries, so that a
	// message for which the broker ends the connection, or never answers, does not
	// affect other messages. A relay sends its retries there, one at a time. It ends
	// with this publisher. Nil means that Publish isolates messages by itself. A
	// decorator decorates the result as well, or it does not see retries.
	Isolated() Publisher
}

// PublisherTraits are the differences between brokers.
type PublisherTraits struct {
	// Heartbeat is set where the broker drops a connection after three heartbeats of
	// silence: a frozen relay cannot publish its claimed rows after that.
	Heartbeat time.Duration
	// Atomic means that the items of one Publish call are stored all or none, in
	// order, so that several records of a key may be in one call.
	Atomic bool
	// Stream, if set, returns the name of a record's stream. The broker keeps the order
	// of a stream within one Publish call: apart from refused records, it stores them
	// in the order of the items, and a lost connection leaves a prefix of them stored.
	Stream func(*waybill.Record) string
	// To are attributes of the destination for logs, without secrets, such as broker and
	// exchange.
	To []slog.Attr
	// Address, if set, returns where a record is published.
	Address func(*waybill.Record) (exchange, routingKey string)
}

// An Item is one record to publish.
type Item struct {
	Seq    int
	Record *waybill.Record
}

// A Result is the outcome of the item with the same Seq.
type Result struct {
	Seq int
	Err error
}

// An UnroutableError reports that the broker cannot route a record: no queue is bound
// for it, or the exchange does not exist or is forbidden. Other records of the same
// name are likely to fail, too.
type UnroutableError struct {
	Exchange, RoutingKey string
	Reason               string // the broker's words
}

func (e *UnroutableError) Error() string {
	return fmt.Sprintf("exchange %q, routing key %q: %s", e.Exchange, e.RoutingKey, e.Reason)
}

// A RejectedError reports that the broker received the record and rejected it
// (basic.nack), as a full queue does: it is retried soon, and without a limit.
type RejectedError struct {
	Reason string // in the broker's or the publisher's words
}

func (e *RejectedError) Error() string { return e.Reason }

// An UnconfirmedError reports that the broker has not answered for a record, although
// it has confirmed records that were sent no earlier on the same connection. The
// record may or may not be stored.
type UnconfirmedError struct {
	Exchange, RoutingKey string
	After                time.Duration // since it was sent
}

func (e *UnconfirmedError) Error() string {
	return fmt.Sprintf("exchange %q, routing key %q: not confirmed after %v, while others were", e.Exchange, e.RoutingKey, e.After.Round(time.Millisecond))
}

// A BrokerError reports that a relay could not reach its broker, or that its exchange or
// queue does not exist.
type BrokerError struct{ Err error }

func (e *BrokerError) Error() string { return "publish: " + e.Err.Error() }

// Unwrap returns Err.
func (e *BrokerError) Unwrap() error { return e.Err }

// A ConnectionLostError reports that the connection ended while the record was in
// flight, and perhaps because of it: the record may or may not be stored. It wraps
// waybill.ErrUnavailable.
type ConnectionLostError struct {
	Err error
	// CausedByMessage is true if the broker closed the connection or channel because
	// of a record in flight.
	CausedByMessage bool
}

func (e *ConnectionLostError) Error() string {
	return "connection lost with the message in flight: " + e.Err.Error()
}

// Unwrap returns waybill.ErrUnavailable and Err.
func (e *ConnectionLostError) Unwrap() []error { return []error{waybill.ErrUnavailable, e.Err} }
