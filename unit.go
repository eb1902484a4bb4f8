package waybill

import (
	"context"
	"errors"
)

// ErrForeignTransaction says that a unit of work was begun inside one of another
// database. Each commits by itself: a crash between the two commits leaves one effect
// without the other.
var ErrForeignTransaction = errors.New("a unit of work of another database is open in this context, and the two would not commit together: " +
	"write through the one that is open, or begin this one before or after it; where two separate commits are meant, begin it with waybill.SeparateTransaction(ctx)")

// openUnit is a unit of work that is open in a context.
type openUnit struct {
	db       any
	around   *openUnit // the unit of another database that it was begun in, or nil
	separate bool      // by SeparateTransaction: units of other databases may begin in it
}

type openUnitKey struct{}

func openIn(ctx context.Context) *openUnit {
	u, _ := ctx.Value(openUnitKey{}).(*openUnit)
	return u
}

// SeparateTransaction returns a context in which a unit of work of another database may
// begin while one is open. It commits by itself, before the open one: when that rolls
// back or is run again, the messages of this one were dispatched all the same, and may be
// dispatched once more.
func SeparateTransaction(ctx context.Context) context.Context {
	u := openIn(ctx)
	if u == nil {
		return ctx
	}
	allowing := *u
	allowing.separate = true
	return context.WithValue(ctx, openUnitKey{}, &allowing)
}

// WithUnit returns the context for the function of a unit of work of db, a pointer. It is
// for implementations of outbox.Writer and inbox.Store.
func WithUnit(ctx context.Context, db any) context.Context {
	return context.WithValue(ctx, openUnitKey{}, &openUnit{db: db, around: openIn(ctx)})
}

// InUnit reports whether a unit of work of db is open in ctx.
func InUnit(ctx context.Context, db any) bool {
	for u := openIn(ctx); u != nil; u = u.around {
		if u.db == db {
			return true
		}
	}
	return false
}

// CheckUnit returns the error of a unit of work of db that would begin in ctx:
// ErrNestedTransaction where one of db is open, ErrForeignTransaction where one of another
// database is, nil otherwise.
func CheckUnit(ctx context.Context, db any) error {
	switch u := openIn(ctx); {
	case InUnit(ctx, db):
		return ErrNestedTransaction
	case u != nil && !u.separate:
		return ErrForeignTransaction
	}
	return nil
}
