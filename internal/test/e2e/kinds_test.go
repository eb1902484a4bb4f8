package e2e

import (
	"context"
	"database/sql"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waytest"
	"github.com/waybill-go/waybill/worker"
)

// A kind is one of the databases that the demonstrations run on, with what
// differs between them.
type kind struct {
	name string
	// fresh returns the URL of an empty database of the test's own.
	fresh func(tb testing.TB) string
	// start starts a server that the test may kill. PostgreSQL's settings let a
	// kill lose acknowledged transactions.
	start func(tb testing.TB) *testserver.Server
	open  func(ctx context.Context, address string, how opening) (database, error)

	// id returns a message id as the tables take it.
	id func(id waybill.MessageID) any

	// text returns the URL whose statements go over the wire as text, so that a
	// proxy knows them by locks, reads, deletes and commits: parts of the
	// statements of a claim.
	text                           func(address string) string
	locks, reads, deletes, commits string

	// again reports whether a transaction has to be run again because the number of
	// buckets was changed meanwhile.
	again func(err error) bool

	// began counts the transactions of the database that began by the time that
	// now gives, and says tells of one.
	now, began, says string
	// pause is the time between two queries of the transactions that keeps the
	// server from answering the second from its cache.
	pause time.Duration
	// grace is how long after the idle timeout a transaction may still be there.
	grace time.Duration

	// client dispatches by the SQL client of the database, in one session: in
	// each round every key alone, and all in one transaction.
	client func(s *stack, keys []string, rounds int) error
}

var kinds = []*kind{&postgresKind, &mariaDBKind}

// onBoth runs a demonstration on each kind of database.
func onBoth(t *testing.T, demonstrate func(t *testing.T, on *kind)) {
	t.Parallel()
	for _, on := range kinds {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			demonstrate(t, on)
		})
	}
}

// onOne runs a demonstration on PostgreSQL alone, and with -long on each kind of database.
func onOne(t *testing.T, demonstrate func(t *testing.T, on *kind)) {
	t.Parallel()
	for _, on := range kinds {
		if on.name == "postgres" || *long {
			t.Run(on.name, func(t *testing.T) {
				t.Parallel()
				demonstrate(t, on)
			})
		}
	}
}

// An opening says how a process opens its database.
type opening struct {
	idle time.Duration
	dial func(ctx context.Context, network, address string) (net.Conn, error) // nil: the usual
}

// A database is waybill's part of one, opened as a process does.
type database interface {
	admin.Database
	outbox.Store
	// look is for the test's own statements, with ? for their arguments.
	look(statement string) (*sql.DB, string)
	application(cfg outbox.Config) (application, error)
	// handle registers a handler that writes one row for each message, and then runs
	// after.
	handle(bus *waybill.Bus, after func())
	// leased returns a queue of the database.
	leased(name string, lease time.Duration) (waytest.Transport, error)
	worker.Store
	Close() error
}

// An application dispatches in units of work, and in the application's own
// transactions.
type application interface {
	inTx(ctx context.Context, fn func(ctx context.Context, u unit) error) error
	own(ctx context.Context, fn func(ctx context.Context, u unit) error) error
}

// A unit is a transaction, whatever type it has.
type unit struct {
	dispatch func(ctx context.Context, msg any, stamps ...waybill.Stamp) (waybill.MessageID, error)
	// next counts keys up, each by so many, and returns how far they are. They
	// are locked in the order of their names.
	next func(ctx context.Context, keys []string, each int) (map[string]int, error)
	exec func(ctx context.Context, statement string, args ...any) error
}

// An app is an application whose transactions are of type TX.
type app[TX any] struct {
	out   *outbox.Outbox[TX]
	begin func(ctx context.Context, fn func(tx TX) error) error
	next  func(ctx context.Context, tx TX, keys []string, each int) (map[string]int, error)
	exec  func(ctx context.Context, tx TX, statement string, args ...any) error
}

func (a *app[TX]) inTx(ctx context.Context, fn func(ctx context.Context, u unit) error) error {
	return a.out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[TX]) error {
		u := a.unit(tx.SQL())
		u.dispatch = tx.Dispatch
		return fn(ctx, u)
	})
}

func (a *app[TX]) own(ctx context.Context, fn func(ctx context.Context, u unit) error) error {
	return a.begin(ctx, func(tx TX) error { return fn(ctx, a.unit(tx)) })
}

func (a *app[TX]) unit(tx TX) unit {
	return unit{
		dispatch: func(ctx context.Context, msg any, stamps ...waybill.Stamp) (waybill.MessageID, error) {
			return a.out.Dispatch(ctx, tx, msg, stamps...)
		},
		next: func(ctx context.Context, keys []string, each int) (map[string]int, error) {
			return a.next(ctx, tx, keys, each)
		},
		exec: func(ctx context.Context, statement string, args ...any) error {
			return a.exec(ctx, tx, statement, args...)
		},
	}
}

// numbered writes the arguments of a statement as PostgreSQL does.
func numbered(statement string) string {
	parts := strings.Split(statement, "?")
	for i := range parts[:len(parts)-1] {
		parts[i] += "$" + strconv.Itoa(i+1)
	}
	return strings.Join(parts, "")
}

// anys returns keys as arguments.
func anys[T any](keys []T) []any {
	args := make([]any, len(keys))
	for i, key := range keys {
		args[i] = key
	}
	return args
}
