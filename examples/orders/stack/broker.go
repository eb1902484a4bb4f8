package stack

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/waysqlite"
)

// A Publisher is the relay's end of the broker.
type Publisher interface {
	outbox.Publisher
	io.Closer
}

// A Receiver is billing's end of the broker.
type Receiver interface {
	waybill.Receiver
	io.Closer
}

var errBroker = errors.New("--broker: want sqlite://PATH or amqp://USER:PASSWORD@HOST/VHOST")

// OpenPublisher opens a queue in a file, sqlite://PATH, or an exchange of
// RabbitMQ, which it declares. In production `waybill schema up --transports`
// does that.
func OpenPublisher(ctx context.Context, dsn string) (Publisher, error) {
	switch scheme, path, _ := strings.Cut(dsn, "://"); scheme {
	case "sqlite":
		return openQueue(ctx, path)
	case "amqp":
		cfg := wayamqp.Config{URL: dsn, Exchange: "events", Log: slog.Default()}
		cfg.KeyHeader = true // without it billing would not know whose order it has to keep
		if _, err := wayamqp.Declare(ctx, cfg); err != nil {
			return nil, err
		}
		return wayamqp.NewPublisher(cfg)
	}
	return nil, errBroker
}

// OpenReceiver opens the same queue, or declares a queue of RabbitMQ and binds it
// to the exchange. Until that queue exists the messages are unroutable, and the
// relay keeps them.
func OpenReceiver(ctx context.Context, dsn string) (Receiver, error) {
	switch scheme, path, _ := strings.Cut(dsn, "://"); scheme {
	case "sqlite":
		return openQueue(ctx, path)
	case "amqp":
		cfg := wayamqp.Config{URL: dsn, Exchange: "events", Queue: "billing", Log: slog.Default()}
		cfg.Bindings = []wayamqp.Binding{{Exchange: "events", Key: "order.*"}}
		cfg.SingleActiveConsumer = true // a second billing process stands by, for the sake of the order
		if _, err := wayamqp.Declare(ctx, cfg); err != nil {
			return nil, err
		}
		return wayamqp.NewConsumer(cfg)
	}
	return nil, errBroker
}

// A fileQueue is a queue and the file that it is in.
type fileQueue struct {
	*waysqlite.Queue
	file *waysqlite.DB
}

func (q *fileQueue) Close() error { return q.file.Close() }

func openQueue(ctx context.Context, path string) (*fileQueue, error) {
	file, err := waysqlite.Open(ctx, path, waysqlite.Config{})
	if err != nil {
		return nil, err
	}
	if _, err := file.SchemaUp(ctx); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	queue, err := file.Queue("events", waysqlite.QueueConfig{})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &fileQueue{queue, file}, nil
}
