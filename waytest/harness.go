package waytest

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// A Store is an outbox from both sides: the application's and the relay's.
type Store[TX any] interface {
	outbox.Writer[TX]
	outbox.Store
}

// A Transport is a queue kept in a database.
type Transport interface {
	waybill.Sender
	waybill.Receiver
	outbox.Publisher
}

// A Harness is a database of one test's own: waybill's tables, empty, and an empty
// table of the application's with one column of text. The function that makes it
// also cleans it up. Its functions may be called concurrently.
type Harness[TX any] struct {
	// Store is put to the test, with the optional interfaces that it implements.
	Store Store[TX]

	// Begin begins a transaction of the application's own, which is no unit of
	// work, in the way an application would. It may wait for others to end.
	Begin func(ctx context.Context) (TX, error)
	// Commit and Rollback end what Begin began.
	Commit, Rollback func(ctx context.Context, tx TX) error

	// Insert adds a row to the application's table as part of tx, also where tx
	// is a unit of work's. A text that is in the table already is an error, which
	// the database raises.
	Insert func(ctx context.Context, tx TX, text string) error
	// Texts returns the committed rows of the application's table, in any order.
	// The suites do not call it while they have a transaction open.
	Texts func(ctx context.Context) ([]string, error)

	// OneWriter says that of all transactions one is open at a time and the
	// others wait in Begin or InTx.
	OneWriter bool
	// OneClaim says that of a transport's rows one claim is out at a time, and
	// another finds nothing meanwhile, whatever the keys.
	OneClaim bool

	// Another opens the database once more, as another process does: a store that
	// shares nothing with the first but the tables, and may relay beside it. Nil
	// when only one process may relay.
	Another func(t *testing.T) Store[TX]
	// Crashing opens it as Another does, behind a network: crash cuts all the
	// store's connections, as the end of its process would. The store connects
	// anew when it is used again. Nil when there is no network.
	Crashing func(t *testing.T) (store Store[TX], crash func())
	// Killable opens it as Another does, for a process that can be killed at any statement.
	// Nil when its statements cannot be told apart.
	Killable func(t *testing.T) Process[TX]
	// Impatient opens it as Another does, with an idle timeout of its inbox's
	// transactions, which should be short. Nil when silence ends no transaction.
	Impatient func(t *testing.T) (store Store[TX], idle time.Duration)
	// Queue returns a new receiver of a queue in this database. A lease of zero
	// is the usual one. Nil when there are no queues.
	Queue func(name string, lease time.Duration) (Transport, error)
	// Retries returns a new receiver of the retry queue of a transport. A lease of zero is
	// the usual one. Nil when there are no retry queues.
	Retries func(transport string, lease time.Duration) (worker.RetryQueue, error)
	// LockedQueue locks the table of the queues against claims until unlock is called, and
	// returns a receiver whose session gives up on a lock within seconds. Nil when
	// that cannot be.
	LockedQueue func(t *testing.T, name string) (q Transport, unlock func())
	// Bucket returns the bucket in which a message waits in the outbox: 0 to 63,
	// or -1 without a key. Nil when the outbox has no buckets.
	Bucket func(ctx context.Context, id waybill.MessageID) (int, error)

	// Ends are the ways in which a function can end its transaction by itself,
	// such as a statement COMMIT: then nothing that it dispatched happens.
	Ends map[string]func(ctx context.Context, tx TX) error
	// Losses are the ways in which the database may end a transaction under its
	// user, such as a deadlock or a statement that was cut off. The error is
	// ignored, and then nothing of the transaction may happen.
	Losses map[string]func(ctx context.Context, tx TX) error
	// LostAnswer returns another store on the database, and a function that is
	// called last in a unit of work of that store: the answer to its COMMIT does
	// not come, although it commits. Nil when no answer can be lost.
	LostAnswer func(t *testing.T) (store Store[TX], lose func())
}

// A Process is another process with the database, which a test kills.
type Process[TX any] struct {
	Store   Store[TX]
	Retries func(transport string, lease time.Duration) (worker.RetryQueue, error) // as of a Harness
	// KillAfter kills it when n more of its statements, a commit included, have had their
	// effect, before the answer to the last. All fail until Revive.
	KillAfter func(n int)
	// Revive ends KillAfter, and reports whether it has struck.
	Revive func() (struck bool)
}

// SQLHarness returns a harness for transactions of database/sql, without the fields
// that may be nil. It creates the application's table under that name.
func SQLHarness(t *testing.T, store Store[*sql.Tx], pool *sql.DB, table string) Harness[*sql.Tx] {
	t.Helper()
	if _, err := pool.ExecContext(t.Context(), "CREATE TABLE "+table+" (text varchar(100) PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	return Harness[*sql.Tx]{
		Store:    store,
		Begin:    func(ctx context.Context) (*sql.Tx, error) { return pool.BeginTx(ctx, nil) },
		Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		Insert: func(ctx context.Context, tx *sql.Tx, text string) error {
			return ExecSQL("INSERT INTO "+table+" VALUES ('"+text+"')")(ctx, tx) // drivers differ in parameters
		},
		Texts: func(ctx context.Context) (texts []string, err error) {
			rows, err := pool.QueryContext(ctx, "SELECT text FROM "+table)
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			for rows.Next() {
				var text string
				if err := rows.Scan(&text); err != nil {
					return nil, err
				}
				texts = append(texts, text)
			}
			return texts, rows.Err()
		},
	}
}

// ExecSQL is a function of a harness that runs one statement.
func ExecSQL(statement string) func(ctx context.Context, tx *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	}
}
