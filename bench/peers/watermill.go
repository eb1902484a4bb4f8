package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	wm "github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// watermill is Watermill's Forwarder from watermill-sql to watermill-amqp, put
// together as https://watermill.io/advanced/forwarder/ says (watermill v1.5.1).
type watermill struct {
	label  string
	db     *database
	broker *broker
	keys   int
	log    *errorLog

	// topics are the forwarded topics, with one forwarder for each.
	topics []string
	schema wmsql.DefaultPostgreSQLSchema
	// poll is SubscriberConfig.PollInterval.
	poll time.Duration
	// channels is PublishConfig.ChannelPoolSize.
	channels int
}

// watermillDefaults leaves everything as it is documented, but for confirms:
//   - SubscribeBatchSize 100:
//     https://pkg.go.dev/github.com/ThreeDotsLabs/watermill-sql/v4@v4.1.2/pkg/sql#DefaultPostgreSQLSchema
//   - PollInterval 1 s, AckDeadline 30 s:
//     https://pkg.go.dev/github.com/ThreeDotsLabs/watermill-sql/v4@v4.1.2/pkg/sql#SubscriberConfig
//   - ChannelPoolSize 0, a new channel for each message:
//     https://pkg.go.dev/github.com/ThreeDotsLabs/watermill-amqp/v3@v3.0.1/pkg/amqp#PublishConfig
//   - the topic forwarder_topic:
//     https://pkg.go.dev/github.com/ThreeDotsLabs/watermill@v1.5.1/components/forwarder#Config
func watermillDefaults(db *database, b *broker, keys int, stderr io.Writer) *watermill {
	return &watermill{label: "watermill, defaults", db: db, broker: b, keys: keys, log: &errorLog{w: stderr}, topics: []string{"forwarder_topic"}}
}

// watermillTuned sets the options that the same pages offer for throughput: a larger
// SubscribeBatchSize, a shorter PollInterval, and a ChannelPoolSize, so that
// channels are kept. The forwarder waits for each confirm before it takes the
// next message, so one channel is all it can use.
func watermillTuned(db *database, b *broker, keys int, stderr io.Writer) *watermill {
	w := watermillDefaults(db, b, keys, stderr)
	w.label = "watermill, tuned"
	w.schema.SubscribeBatchSize = 1000
	w.poll = 10 * time.Millisecond
	w.channels = 1
	return w
}

// watermillSharded goes beyond the settings: the application spreads its
// keys over four values of Config.ForwarderTopic, and runs a forwarder for each.
// That keeps the order of a key and waits for four confirms at a time.
func watermillSharded(db *database, b *broker, keys int, stderr io.Writer) *watermill {
	w := watermillTuned(db, b, keys, stderr)
	w.label = "watermill, tuned, 4 topics"
	w.topics = []string{"forwarder_topic_0", "forwarder_topic_1", "forwarder_topic_2", "forwarder_topic_3"}
	w.channels = len(w.topics)
	return w
}

func (w *watermill) name() string { return w.label }

func (w *watermill) load(ctx context.Context, n int) error {
	for _, topic := range w.topics {
		if err := w.db.exec(ctx, "DROP TABLE IF EXISTS "+w.schema.MessagesTable(topic)+", "+w.offsets(topic)); err != nil {
			return err
		}
		sub, err := w.subscriber()
		if err != nil {
			return err
		}
		if err := sub.SubscribeInitialize(topic); err != nil {
			return err
		}
	}
	err := batches(n, w.keys, loadBatch, func(ms []placed) error {
		return pgx.BeginFunc(ctx, w.db.pool, func(tx pgx.Tx) error { return w.publish(tx, ms) })
	})
	if err != nil {
		return err
	}
	for _, topic := range w.topics {
		table := w.schema.MessagesTable(topic)
		if err := w.db.exec(ctx, "VACUUM ANALYZE "+table); err != nil {
			return err
		}
		// A subscriber sees no rows younger than the oldest open transaction of
		// the server. Transactions of other programs are not its fault.
		err := w.db.until(ctx, "SELECT count(*) = 0 FROM "+table+" WHERE transaction_id >= pg_snapshot_xmin(pg_current_snapshot())")
		if err != nil {
			return fmt.Errorf("a transaction that is open elsewhere on this server hides the messages; end it, see pg_stat_activity: %w", err)
		}
	}
	return nil
}

// publish writes messages to their topics in the order of ms, in one
// transaction.
func (w *watermill) publish(tx pgx.Tx, ms []placed) error {
	to, err := wmsql.NewPublisher(wmsql.TxFromPgx(tx), wmsql.PublisherConfig{SchemaAdapter: w.schema}, w.log)
	if err != nil {
		return err
	}
	perTopic := map[string][]*message.Message{}
	for _, m := range ms {
		body, err := m.body()
		if err != nil {
			return err
		}
		topic := w.topicOf(m.Key)
		perTopic[topic] = append(perTopic[topic], message.NewMessage(wm.NewUUID(), body))
	}
	for _, topic := range slices.Sorted(maps.Keys(perTopic)) {
		pub := forwarder.NewPublisher(to, forwarder.PublisherConfig{ForwarderTopic: topic})
		if err := pub.Publish(messageName, perTopic[topic]...); err != nil {
			return err
		}
	}
	return nil
}

func (w *watermill) topicOf(key string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return w.topics[int(h.Sum32()%uint32(len(w.topics)))]
}

func (w *watermill) offsets(topic string) string {
	return wmsql.DefaultPostgreSQLOffsetsAdapter{}.MessagesOffsetsTable(topic)
}

func (w *watermill) subscriber() (*wmsql.Subscriber, error) {
	return wmsql.NewSubscriber(wmsql.BeginnerFromPgx(w.db.pool), wmsql.SubscriberConfig{
		SchemaAdapter:  w.schema,
		OffsetsAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval:   w.poll,
	}, w.log)
}

func (w *watermill) relay(ctx context.Context, n int) (_ time.Duration, err error) {
	config := wmamqp.NewDurableTopicConfig(w.broker.url, w.broker.name, w.broker.name)
	config.Exchange.Durable = true // as it is declared; NewDurableTopicConfig makes only the queue durable
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = w.channels
	to, err := wmamqp.NewPublisher(config, w.log)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	count := newCountdown(n)
	var forwarders []*forwarder.Forwarder
	for _, topic := range w.topics {
		sub, err := w.subscriber()
		if err != nil {
			return 0, err
		}
		f, err := forwarder.NewForwarder(sub, counted{to, count}, w.log, forwarder.Config{ForwarderTopic: topic})
		if err != nil {
			return 0, err
		}
		forwarders = append(forwarders, f)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(forwarders))
	start := time.Now()
	for _, f := range forwarders {
		go func() { ended <- f.Run(ctx) }()
	}
	err = count.wait(ctx, ended)
	took := time.Since(start)
	for _, topic := range w.topics {
		if err == nil {
			err = w.settled(ctx, topic)
		}
	}
	w.log.stopping.Store(true)
	defer w.log.stopping.Store(false)
	for _, f := range forwarders {
		err = errors.Join(err, f.Close())
	}
	return took, err
}

// settled waits until the subscriber has written that it is through.
func (w *watermill) settled(ctx context.Context, topic string) error {
	return w.db.until(ctx, `SELECT coalesce((SELECT max("offset") FROM `+w.schema.MessagesTable(topic)+`), 0) = (SELECT offset_acked FROM `+w.offsets(topic)+`)`)
}

// counted counts the messages that its publisher has published.
type counted struct {
	message.Publisher
	count *countdown
}

func (c counted) Publish(topic string, ms ...*message.Message) error {
	err := c.Publisher.Publish(topic, ms...)
	if err == nil {
		c.count.confirmed(len(ms))
	}
	return err
}

// errorLog prints errors, but for those of stopping, and costs nothing
// otherwise.
type errorLog struct {
	wm.NopLogger
	w        io.Writer
	stopping atomic.Bool
}

func (l *errorLog) Error(msg string, err error, _ wm.LogFields) {
	if !l.stopping.Load() {
		fmt.Fprintf(l.w, "watermill: %s: %v\n", msg, err)
	}
}

func (l *errorLog) With(wm.LogFields) wm.LoggerAdapter { return l }
