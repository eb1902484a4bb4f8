package waybill

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

var (
	// ErrNotFound says that the requested item does not exist.
	ErrNotFound = errors.New("not found")

	// ErrUnavailable says that a database or broker cannot be reached. It never
	// counts as a failure of a message.
	ErrUnavailable = errors.New("unavailable")

	// ErrCommitUnknown says that the commit of a unit of work was sent and its
	// result was lost: its messages may or may not be dispatched. The error is a
	// *CommitUnknownError, which has their ids.
	ErrCommitUnknown = errors.New("result of the commit is unknown")

	// ErrNestedTransaction says that a unit of work was begun inside another one
	// of the same database, where it would wait for itself, as a read of a database
	// of one connection would.
	ErrNestedTransaction = errors.New("a unit of work of this database is already open in this context: use its transaction")

	// ErrTransactionLost says that the database ended the transaction inside a unit
	// of work, by a deadlock or for a statement that commits. The unit may be run
	// again.
	ErrTransactionLost = errors.New("the database ended the transaction inside the unit of work")

	// ErrLeaseLost says that a delivery was settled, or its handler stopped,
	// after its lease had passed to another worker.
	ErrLeaseLost = errors.New("lease lost: the message was given to another worker")

	// ErrDuplicate is the result of a handler that had its effect at an earlier delivery. It
	// counts as success.
	ErrDuplicate = errors.New("duplicate")

	// ErrRelayRunning says that another process already relays this database.
	ErrRelayRunning = errors.New("another process relays this database")
)

// CommitUnknownError is the ErrCommitUnknown of one unit of work.
type CommitUnknownError struct {
	IDs []MessageID // messages dispatched in it
	Err error       // error of the commit
}

func (e *CommitUnknownError) Error() string {
	if len(e.IDs) == 0 {
		return fmt.Sprintf("waybill: %v: %v", ErrCommitUnknown, e.Err)
	}
	ids := make([]string, len(e.IDs))
	for i, id := range e.IDs {
		ids[i] = id.String()
	}
	return fmt.Sprintf("waybill: %v (messages: %s): %v", ErrCommitUnknown, strings.Join(ids, ", "), e.Err)
}

// Unwrap makes errors.Is find ErrCommitUnknown and the cause.
func (e *CommitUnknownError) Unwrap() []error { return []error{ErrCommitUnknown, e.Err} }

// UnknownNameError says that a message name is not registered. Names are an
// allow-list: a received message can instantiate registered types only.
type UnknownNameError struct {
	Name  string
	Known []string // sorted
}

func (e *UnknownNameError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("waybill: unknown message name %q: no names are registered", clip(e.Name, 190))
	}
	return fmt.Sprintf("waybill: unknown message name %q: known are %s", clip(e.Name, 190), clip(strings.Join(e.Known, ", "), 400))
}

// TypeError says that a Go type cannot be a message or is not known as one.
type TypeError struct {
	Type    string
	Problem string
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("waybill: message type %s: %s", e.Type, e.Problem)
}

// LimitError says that a part of a message is larger than allowed.
type LimitError struct {
	What     string // "body", "header count", ...
	Got, Max int
	Field    string // of Limits, which raises the limit; empty if it is fixed
}

func (e *LimitError) Error() string {
	text := fmt.Sprintf("waybill: %s is %d, the limit is %d", e.What, e.Got, e.Max)
	if e.Field != "" {
		text += "; Limits." + e.Field + " of the serializers on both sides raises it"
	}
	return text
}

// InvalidError says that a part of a message is malformed.
type InvalidError struct {
	What    string // "header", "partition key", ...
	Value   string
	Problem string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("waybill: %s %q: %s", e.What, clip(e.Value, 80), e.Problem)
}

// DecodeError says that a received body does not decode as the type of its name.
// Retrying does not help.
type DecodeError struct {
	Name string
	Err  error
}

func (e *DecodeError) Error() string { return fmt.Sprintf("waybill: decode %s: %v", e.Name, e.Err) }

// Unwrap returns the codec's error.
func (e *DecodeError) Unwrap() error { return e.Err }

// UpcastError says that the upcaster between two versions of a message failed.
type UpcastError struct {
	From, To string // message names
	Err      error
}

func (e *UpcastError) Error() string { return fmt.Sprintf("upcast %s to %s: %v", e.From, e.To, e.Err) }

// Unwrap returns the upcaster's error.
func (e *UpcastError) Unwrap() error { return e.Err }

// NoHandlerError says that a message has neither a handler nor a route.
type NoHandlerError struct{ Bus, Name string }

func (e *NoHandlerError) Error() string {
	return fmt.Sprintf("waybill: bus %s: no handler and no route for %s", e.Bus, e.Name)
}

// HandlersError is the error of a bus when handlers of a message failed.
type HandlersError struct {
	Failed    []HandlerError
	Succeeded []string // handlers that need not run again
}

// HandlerError is the failure of one handler.
type HandlerError struct {
	Handler string
	Err     error
}

func (e *HandlersError) Error() string {
	parts := make([]string, len(e.Failed))
	for i, f := range e.Failed {
		parts[i] = fmt.Sprintf("%s: %v", f.Handler, f.Err) // which contains a panic of Error
	}
	return strings.Join(parts, "; ")
}

// Unwrap returns the handlers' errors.
func (e *HandlersError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Err
	}
	return errs
}

// PanicError is a panic of a handler, of middleware or of decoding.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

type unrecoverable struct{ error }

func (e unrecoverable) Unwrap() error { return e.error }

// Unrecoverable marks err as permanent: retrying does not help.
func Unrecoverable(err error) error {
	if err == nil {
		return nil
	}
	return unrecoverable{err}
}

// IsUnrecoverable reports whether err is permanent: it is marked Unrecoverable, or an
// undecodable body, an unknown name or a missing handler, anywhere in its tree. Of
// several marks around one error the outermost counts, RetryAfter being the opposite
// one. A *HandlersError is permanent if all its failures are, joined errors if one of
// them is.
func IsUnrecoverable(err error) bool {
	for err != nil {
		switch e := err.(type) {
		case retryAfter:
			return false
		case unrecoverable, *DecodeError, *NoHandlerError, *UnknownNameError:
			return true
		case *HandlersError:
			recoverable := func(f HandlerError) bool { return !IsUnrecoverable(f.Err) }
			return len(e.Failed) > 0 && !slices.ContainsFunc(e.Failed, recoverable)
		case interface{ Unwrap() []error }:
			return slices.ContainsFunc(e.Unwrap(), IsUnrecoverable)
		}
		err = errors.Unwrap(err)
	}
	return false
}

type retryAfter struct {
	error
	delay time.Duration
}

func (e retryAfter) Unwrap() error { return e.error }

// RetryAfter marks err as one that may succeed after d, in place of the
// transport's own delay. The worker caps d at its Backoff.MaxRetryAfter.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return retryAfter{err, d}
}

// RetryDelay returns the delay asked for by RetryAfter anywhere in the tree of err, the
// longest of several errors, so that none is tried too early. A permanent error has
// none, neither have the permanent failures of a *HandlersError.
func RetryDelay(err error) (delay time.Duration, ok bool) {
	for err != nil && !IsUnrecoverable(err) {
		switch e := err.(type) {
		case retryAfter:
			return e.delay, true
		case interface{ Unwrap() []error }: // a *HandlersError, too
			for _, one := range e.Unwrap() {
				if d, asked := RetryDelay(one); asked && (!ok || d > delay) {
					delay, ok = d, true
				}
			}
			return delay, ok
		}
		err = errors.Unwrap(err)
	}
	return 0, false
}
