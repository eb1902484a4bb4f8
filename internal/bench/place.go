package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// A place is where it is measured: tables of the benchmark's own in one
// database, waybill's and those of the yardsticks.
type place interface {
	// database is its name in results.
	database() string
	store() outbox.Store
	// elsewhere opens the same outbox as another process would.
	elsewhere(ctx context.Context) (outbox.Store, func() error, error)
	// load writes the rows of a round of relay, for waybill or for the yardstick.
	load(ctx context.Context, opt Options, ideal bool) error
	// ideal is the yardstick of relay, one batch: it claims whatever is free,
	// publishes all of it at once and deletes it when everything is confirmed. It
	// keeps no order, and mends nothing. Zero means that nothing was left.
	ideal(ctx context.Context, ch *amqp.Channel, exchange string) (n int, err error)
	// transactions are what dispatch is measured with, and against.
	transactions() ([]transaction, error)
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

func newPlace(ctx context.Context, opt Options) (place, error) {
	name := fmt.Sprintf("waybill_bench_%d", time.Now().UnixMilli())
	var p place
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

// rebucket gives an outbox so many buckets.
func rebucket(ctx context.Context, db admin.Database, buckets int) error {
	if buckets == outbox.DefaultBuckets {
		return nil
	}
	_, err := db.Rebucket(ctx, buckets, false)
	return err
}

// A row is a message as the yardstick of relay keeps it.
type row struct {
	id                 int64
	message            [16]byte
	name, key, headers string
	body               []byte
	created            time.Time
}

// publish sends a row with the properties and headers that a consumer is
// promised.
func (r row) publish(ctx context.Context, ch *amqp.Channel, exchange string) (*amqp.DeferredConfirmation, error) {
	id := waybill.MessageID(r.message).String()
	return ch.PublishWithDeferredConfirmWithContext(ctx, exchange, r.name, true, false, amqp.Publishing{
		Headers:   amqp.Table{"type": r.name, "x-message-id": id, "x-attempt": "1", "x-dispatched-at": r.created.UTC().Format(time.RFC3339Nano)},
		MessageId: id, Type: r.name, ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: r.created, Body: r.body,
	})
}

func wait(ctx context.Context, confirms []*amqp.DeferredConfirmation) error {
	for _, c := range confirms {
		if acked, err := c.WaitContext(ctx); err != nil || !acked {
			return fmt.Errorf("confirm: %t, %w", acked, err)
		}
	}
	return nil
}

// keyOf returns the key of the row with the number i.
func keyOf(i, keys int) string { return fmt.Sprint("key-", i%keys) }
