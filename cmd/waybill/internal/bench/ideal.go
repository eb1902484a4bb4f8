package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// A table is the name of a table that rows are loaded into.
type table string

const (
	outboxTable  table = "waybill_outbox"
	unkeyedTable table = "waybill_outbox_unkeyed"
)

// A yardstick is a relay written by hand: its table, the columns that it reads, and
// its publish function.
type yardstick struct {
	table
	columns, order string
	publish        func(r row, ctx context.Context, ch *amqp.Channel, to string) (*amqp.DeferredConfirmation, error)
	columnsOf      func(r *row) []any
}

var (
	// ideal publishes the oldest rows first, with all properties that waybill
	// sends.
	ideal = yardstick{"ideal", "id, message_id, message_name, partition_key, headers, body, created_at", "ORDER BY id", row.publish,
		func(r *row) []any { return []any{&r.id, &r.message, &r.name, &r.key, &r.headers, &r.body, &r.created} }}
	// bare publishes a name and a body to a queue, through the default exchange.
	bare = yardstick{"bare", "id, message_name, body", "", row.publishBare,
		func(r *row) []any { return []any{&r.id, &r.name, &r.body} }}
)

// A row is a message in the table of a yardstick.
type row struct {
	id                 int64
	message            [16]byte
	name, key, headers string
	body               []byte
	created            time.Time
}

// publish sends a row with all properties that waybill sends, so that the broker
// has the same work. Without a channel it sends nothing.
func (r row) publish(ctx context.Context, ch *amqp.Channel, exchange string) (*amqp.DeferredConfirmation, error) {
	if ch == nil {
		return nil, nil
	}
	id := waybill.MessageID(r.message).String()
	return ch.PublishWithDeferredConfirmWithContext(ctx, exchange, r.name, true, false, amqp.Publishing{
		MessageId: id, Type: r.name, ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: r.created, Body: r.body,
	})
}

// publishBare sends name and body.
func (r row) publishBare(ctx context.Context, ch *amqp.Channel, queue string) (*amqp.DeferredConfirmation, error) {
	if ch == nil {
		return nil, nil
	}
	return ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, amqp.Publishing{Type: r.name, DeliveryMode: amqp.Persistent, Body: r.body})
}

func wait(ctx context.Context, confirms []*amqp.DeferredConfirmation) error {
	for _, c := range confirms {
		if c == nil {
			continue // was not sent
		}
		if acked, err := c.WaitContext(ctx); err != nil || !acked {
			return fmt.Errorf("confirm: %t, %w", acked, err)
		}
	}
	return nil
}

// confirming opens n channels in confirm mode, each on a separate connection.
func confirming(url string, n int) (chs []*amqp.Channel, closeAll func() error, err error) {
	var conns []*amqp.Connection
	closeAll = func() (err error) {
		for _, c := range conns {
			err = errors.Join(err, c.Close())
		}
		return err
	}
	for range n {
		conn, err := amqp.Dial(url)
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
		conns = append(conns, conn)
		ch, err := conn.Channel()
		if err == nil {
			err = ch.Confirm(false)
		}
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
		chs = append(chs, ch)
	}
	return chs, closeAll, nil
}

// relays runs a yardstick's relay once per channel, until no row is left or, with a
// pause, until ctx ends. to names both the exchange and the queue.
func (y yardstick) relays(ctx context.Context, p backend, chs []*amqp.Channel, to string, pause time.Duration) error {
	var wg sync.WaitGroup
	errs := make([]error, len(chs))
	for i, ch := range chs {
		wg.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				var n int
				n, errs[i] = p.byHand(context.WithoutCancel(ctx), y, ch, to)
				if n == 0 && pause == 0 {
					return
				}
				if n == 0 {
					time.Sleep(pause)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// oneByOne is the yardstick of a single key: it publishes rows and waits for
// the confirmation of each, which is all that a client in strict order can do.
func oneByOne(ctx context.Context, ch *amqp.Channel, exchange string, n int) error {
	id, err := waybill.NewMessageID()
	if err != nil {
		return err
	}
	filler := strings.Repeat("x", 184)
	for i := range n {
		body := binary.BigEndian.AppendUint64(nil, uint64(i))
		body = append(binary.BigEndian.AppendUint64(body, 0), filler...)
		r := row{id: int64(i), message: id, name: "order.placed", body: body, created: time.Now()}
		confirm, err := r.publish(ctx, ch, exchange)
		if err != nil {
			return err
		}
		if err := wait(ctx, []*amqp.DeferredConfirmation{confirm}); err != nil {
			return err
		}
	}
	return nil
}
