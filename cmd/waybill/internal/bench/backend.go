package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// A backend is the tables of one database that a benchmark uses: waybill's and the
// yardsticks'.
type backend interface {
	// database is its name in results, option the DSN option that selects its tables.
	database() string
	option() string
	store() outbox.Store
	// elsewhere opens the same outbox as another process would.
	elsewhere(ctx context.Context) (outbox.Store, func() error, error)
	// waking opens the same outbox as processes that tell each other of commits;
	// without a hears where the database cannot.
	waking(ctx context.Context) (waking, error)
	// load inserts rows; tidy vacuums (PostgreSQL) and analyzes a table.
	load(ctx context.Context, r rows, into table) error
	tidy(ctx context.Context, t table) error
	// trace gives the rows of the outbox traces, of which one in so many is sampled.
	trace(ctx context.Context, oneIn int) error
	// block blocks the keys of all rows of the outbox, as a relay does whose broker has
	// refused them: for retryIn, or until they are released.
	block(ctx context.Context, parked bool) error
	// byHand relays one batch of a yardstick: it claims unlocked rows, publishes
	// all of them at once and deletes them when all are confirmed. It keeps no
	// order and has no remedy for failures. n is 0 when no row is left. Without a
	// channel it publishes nothing.
	byHand(ctx context.Context, y yardstick, ch *amqp.Channel, to string) (n int, err error)
	// transactions are the kinds of transaction that dispatch measures, each with
	// its yardstick.
	transactions() []transaction
	// insert writes a business row and messages for a yardstick.
	insert(ctx context.Context, y yardstick, ms []sold) error
	// delay dispatches messages that are due in a day; makeDue makes all delayed
	// messages due.
	delay(ctx context.Context, ms []large) error
	makeDue(ctx context.Context) error
	// snapshot holds a read snapshot, which keeps the server from purging rows
	// deleted later. release returns an error if the server has ended it.
	snapshot(ctx context.Context) (release func() error, err error)
	// target is the ratio that dispatch of so many messages at once should reach.
	target(messages int) float64
	// clear empties the tables that they write to.
	clear(ctx context.Context) error
	close() error
}

// A transaction writes a business row and messages, by waybill and by hand.
type transaction struct {
	name           string
	waybill, plain func(ctx context.Context, ms []sold) error
}

// ErrOpen says that a database or broker could not be used.
var ErrOpen = errors.New("cannot be used")

func newBackend(ctx context.Context, opt Options) (backend, error) {
	name := fmt.Sprintf("waybill_bench_%d", time.Now().UnixMilli())
	var p backend
	var err error
	if opt.MySQL != nil {
		p, err = newMySQL(ctx, opt, name+"_")
	} else {
		p, err = newPostgres(ctx, opt, name)
	}
	if err != nil {
		return nil, fmt.Errorf("the database %w: %w", ErrOpen, err)
	}
	return p, nil
}

// openBoth opens the database and the broker of opt.
func openBoth(ctx context.Context, opt Options) (p backend, b *broker, closeBoth func() error, err error) {
	if p, err = newBackend(ctx, opt); err != nil {
		return nil, nil, nil, err
	}
	if b, err = newBroker(opt); err != nil {
		return nil, nil, nil, errors.Join(err, p.close())
	}
	return p, b, func() error { return errors.Join(b.close(), p.close()) }, nil
}

// rebucket gives an outbox so many buckets.
func rebucket(ctx context.Context, db admin.Database, buckets int) error {
	if buckets == outbox.DefaultBuckets {
		return nil
	}
	_, err := db.Rebucket(ctx, buckets, false)
	return err
}

// keyOf returns the key of the row with the number i.
func keyOf(i, keys int) string { return fmt.Sprint("key-", i%keys) }
