package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// A row is a message as the yardstick of relay keeps it.
type row struct {
	id                 int64
	message            [16]byte
	name, key, headers string
	body               []byte
	created            time.Time
}

// publish sends a row with all properties and headers that waybill sends, so
// that the broker has the same to do. Without a channel it sends nothing.
func (r row) publish(ctx context.Context, ch *amqp.Channel, exchange string) (*amqp.DeferredConfirmation, error) {
	if ch == nil {
		return nil, nil
	}
	id := waybill.MessageID(r.message).String()
	return ch.PublishWithDeferredConfirmWithContext(ctx, exchange, r.name, true, false, amqp.Publishing{
		Headers: amqp.Table{"type": r.name, "x-message-id": id, "x-attempt": "1", "x-publish-no": strconv.FormatInt(r.id, 10),
			"x-dispatched-at": r.created.UTC().Format("2006-01-02T15:04:05.000000Z07:00")},
		MessageId: id, Type: r.name, ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: r.created, Body: r.body,
	})
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

// confirming opens n channels in confirm mode, each on a connection of its own.
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

// idealRelays relay by the yardstick, one over each channel, until nothing is
// left or, with a pause, until ctx ends.
func idealRelays(ctx context.Context, p place, chs []*amqp.Channel, exchange string, pause time.Duration) error {
	var wg sync.WaitGroup
	errs := make([]error, len(chs))
	for i, ch := range chs {
		wg.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				var n int
				n, errs[i] = p.ideal(context.WithoutCancel(ctx), ch, exchange)
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
