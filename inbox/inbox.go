package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/crash"
)

// An Entry records that a handler's effect for a dedup key has happened.
type Entry struct {
	Handler   string
	DedupKey  string
	MessageID waybill.MessageID
}

// Check returns an unrecoverable error for an entry that the databases do not take alike:
// a handler's name of more than 190 bytes, a dedup key of more than 512, and text that is
// not UTF-8 or has a NUL. Every Store and Log returns it, without failing a transaction.
func (e Entry) Check() error {
	switch {
	case len(e.Handler) > 190 || len(e.DedupKey) > 512:
		return waybill.Unrecoverable(fmt.Errorf("inbox: the handler's name has %d bytes, the dedup key %d: allowed are 190 and 512", len(e.Handler), len(e.DedupKey)))
	case !utf8.ValidString(e.Handler+e.DedupKey) || strings.Contains(e.Handler+e.DedupKey, "\x00"):
		return waybill.Unrecoverable(fmt.Errorf("inbox: the handler's name %q or the dedup key %q is not UTF-8 without NUL", e.Handler, e.DedupKey))
	}
	return nil
}

// A Store keeps the inbox of one database, in transactions of type TX. Its
// methods may be called concurrently, but not for one transaction.
type Store[TX any] interface {
	// InTx runs fn in a transaction and commits it; outbox dispatches made with
	// tx join it. An error of fn rolls back and is returned. A transaction with an entry
	// of a frozen process, or of one that ignores the end of ctx, ends within a bounded
	// time, where the database can see that; one that is slow continues.
	InTx(ctx context.Context, fn func(ctx context.Context, tx TX) error) error
	// InTransaction reports whether ctx is the context of a function run by InTx: such a
	// function must not wait for another transaction.
	InTransaction(ctx context.Context) bool
	// InsertTx inserts e in tx. It returns false if e exists already.
	InsertTx(ctx context.Context, tx TX, e Entry) (bool, error)
	// RunInSavepoint inserts e and runs fn behind a savepoint of tx, a transaction of
	// InTx. Without fresh e exists already, and fn did not run. failed is the error of
	// fn, or of inserting e: the savepoint is rolled back, and tx continues. lost is the
	// reason why tx cannot continue; InTx must then fail. Both are set if fn ended tx:
	// what was done before is then committed without its dispatches, or rolled back.
	//
	// fn gets ctx, which may end before the transaction's context. A transaction
	// ended by fn may be reported only by the next RunInSavepoint or by InTx. It is not
	// called concurrently for one tx.
	RunInSavepoint(ctx context.Context, tx TX, e Entry, fn func(ctx context.Context) error) (fresh bool, failed, lost error)
	// Retention is how long entries are kept; zero means for ever.
	Retention() time.Duration
}

// A Log is an inbox for effects outside its database. It does not guarantee exactly
// once: after a crash between the effect and its entry, the effect is repeated.
type Log interface {
	// Contains reports whether e exists.
	Contains(ctx context.Context, e Entry) (bool, error)
	// Insert inserts e, unless it exists.
	Insert(ctx context.Context, e Entry) error
}

// A Pruner removes entries that no message needs any more.
type Pruner interface {
	// PruneExpired removes up to max entries older than the retention that is recorded in the
	// database, and unique keys of dispatched messages (waybill.Unique) whose time is over,
	// in short transactions, and returns their number. Fewer than max means
	// that none is left.
	PruneExpired(ctx context.Context, max int) (removed int, err error)
}

// TooOldError says that a message is older than the retention of the inbox, which
// cannot tell whether the message was handled. EntryFor marks it unrecoverable.
type TooOldError struct {
	ID             waybill.MessageID
	Age, Retention time.Duration
}

func (e *TooOldError) Error() string {
	return fmt.Sprintf("inbox: message %s is %v old and the inbox remembers %v: too old to prove that it was not handled; see to it by hand, and raise the retention (inbox.retention) above the longest wait", e.ID, e.Age.Round(time.Second), e.Retention)
}

// Option tunes a handler. Several add up.
type Option struct {
	// Linger is the longest wait of a Group's first message for further ones; zero
	// means 2 ms.
	Linger time.Duration

	group int // see Group; 0 means that each message has its own transaction
}

// errFollowUp refuses waybill.DispatchAfterCurrentBus: the transaction has committed
// when follow-ups are sent, so a retry would be a duplicate and send nothing.
var errFollowUp = waybill.Unrecoverable(errors.New("inbox: DispatchAfterCurrentBus in a handler with an inbox: if its sending failed after the commit, nothing would send it again; dispatch it through the outbox with the handler's transaction"))

// Handle registers fn under a name that never changes. fn runs inside a
// transaction of store; its writes, its dispatches with tx to an outbox of the same
// database, and the inbox entry commit together. fn neither commits nor rolls back.
// waybill.DispatchAfterCurrentBus is refused in it: the outbox takes follow-ups.
// A duplicate is not an error: waybill.Report tells the worker's observer. Handle panics where waybill.Handle does, on
// a nil store or fn, and on options that do not fit.
//
// Messages with the same name and waybill.IdempotencyKey are duplicates of each other.
func Handle[TX, M any](b *waybill.Bus, store Store[TX], name string, fn func(ctx context.Context, tx TX, m M) error, opts ...Option) {
	if v := reflect.ValueOf(store); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		panic(fmt.Errorf("inbox: handler %q has no database: the store is nil", name))
	}
	if fn == nil {
		panic(fmt.Errorf("inbox: the function of handler %q is nil", name))
	}
	group, linger := 0, time.Duration(0)
	for _, o := range opts {
		group, linger = cmp.Or(o.group, group), cmp.Or(o.Linger, linger)
	}
	run := func(ctx context.Context, e Entry, fn func(ctx context.Context, tx TX) error) error {
		return once(ctx, store, e, fn)
	}
	switch {
	case linger < 0, linger > 0 && group == 0:
		panic(fmt.Errorf("inbox: handler %q: a Linger of %v without a Group, or below zero", name, linger))
	case group > 0:
		run = (&grouping[TX]{store: store, size: group, linger: cmp.Or(linger, defaultLinger)}).once
	}
	waybill.Handle(b, name, func(ctx context.Context, m M) error {
		env := waybill.EnvelopeFrom(ctx)
		entry, err := EntryFor(name, env, store.Retention())
		if err != nil {
			return err
		}
		err = run(ctx, entry, func(ctx context.Context, tx TX) error { return fn(waybill.WithoutFollowUps(ctx, errFollowUp), tx, m) })
		if errors.Is(err, waybill.ErrDuplicate) {
			message, _ := waybill.Last[waybill.MessageName](env)
			key, _ := waybill.Last[waybill.PartitionKey](env)
			from, _ := waybill.Last[waybill.Received](env)
			waybill.Report(ctx, waybill.Event{Kind: waybill.Duplicate, ID: entry.MessageID, Name: string(message), Key: string(key), Transport: from.Transport, Handler: name})
		}
		return err
	}, waybill.HandlerOption{Gathers: group})
}

// once inserts the entry and then runs the handler, in one transaction.
func once[TX any](ctx context.Context, store Store[TX], e Entry, fn func(ctx context.Context, tx TX) error) error {
	for try := 1; ; try++ {
		err := store.InTx(ctx, func(ctx context.Context, tx TX) error {
			fresh, err := store.InsertTx(ctx, tx, e)
			if err != nil {
				return fmt.Errorf("inbox: %w", err)
			}
			if !fresh {
				return waybill.ErrDuplicate
			}
			err = fn(ctx, tx)
			crash.At(crash.WorkerBeforeCommit)
			return err
		})
		// A lost transaction is rolled back, and is no failure of the message.
		if try == lostTries || !errors.Is(err, waybill.ErrTransactionLost) || ctx.Err() != nil {
			return err
		}
	}
}

// lostTries is how often a handler runs if the database ends its transaction each
// time, before the message counts as failed once.
const lostTries = 5

// EntryFor returns the entry under which a handler's effect for env is
// remembered. An error is unrecoverable: a *TooOldError when env was dispatched longer
// ago than retention, or that of an idempotency key that no dispatch would take.
func EntryFor(handler string, env *waybill.Envelope, retention time.Duration) (Entry, error) {
	id, ok := waybill.Last[waybill.MessageID](env)
	if !ok || id.IsZero() {
		return Entry{}, waybill.Unrecoverable(errors.New("inbox: the message has no id"))
	}
	if at, ok := waybill.Last[waybill.DispatchedAt](env); ok && retention > 0 {
		if age := time.Since(time.Time(at)); age > retention {
			return Entry{}, waybill.Unrecoverable(&TooOldError{id, age, retention})
		}
	}
	dedup := id.String()
	if key, ok := waybill.Last[waybill.IdempotencyKey](env); ok && key != "" {
		if err := checkKey(string(key)); err != nil {
			return Entry{}, waybill.Unrecoverable(fmt.Errorf("inbox: %w", err))
		}
		// A UUID never begins with "k:", and a name has no "/", so no two keys collide.
		// The name is the one that travelled: it does not change with the upcasters of a build.
		name, _ := waybill.Last[waybill.MessageName](env)
		if from, ok := waybill.Last[waybill.UpcastFrom](env); ok {
			name = waybill.MessageName(from)
		}
		dedup = "k:" + string(name) + "/" + string(key)
	}
	return Entry{handler, dedup, id}, nil
}

// maxKey is the limit of a dispatch, too.
const maxKey = 255

// checkKey refuses an idempotency key of another producer that a database would
// refuse, and with it the other messages of its group.
func checkKey(key string) error {
	const what = "idempotency key"
	switch {
	case len(key) > maxKey:
		return &waybill.LimitError{What: what + " length", Got: len(key), Max: maxKey}
	case !utf8.ValidString(key) || strings.ContainsRune(key, 0):
		return &waybill.InvalidError{What: what, Value: key, Problem: "it is not UTF-8, or has a NUL"}
	}
	return nil
}
