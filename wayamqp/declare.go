package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Declared lists what Declare made sure of, in words.
type Declared []string

// Declare makes sure that the exchange, the queue and its bindings of cfg are
// there, durable. What exists stays as it is; where it differs from cfg that is
// an error. An exchange that a binding names is cfg's or was declared before.
func Declare(ctx context.Context, cfg Config) (Declared, error) {
	var done Declared
	err := look(ctx, cfg, func(cfg Config, w *wire, ch *amqp.Channel) error {
		if cfg.Exchange != "" {
			what := fmt.Sprintf("exchange %s (%s)", cfg.Exchange, cfg.ExchangeType)
			if err := ch.ExchangeDeclare(cfg.Exchange, cfg.ExchangeType, true, false, false, false, nil); err != nil {
				return differs(what, err)
			}
			done = append(done, what)
		}
		if cfg.Queue != "" {
			what := fmt.Sprintf("queue %s (%s)", cfg.Queue, cfg.QueueType)
			if _, err := ch.QueueDeclare(cfg.Queue, true, false, false, false, arguments(cfg, w.conn.Properties)); err != nil {
				return differs(what, err)
			}
			done = append(done, what)
		}
		for _, b := range cfg.Bindings {
			what := fmt.Sprintf("binding %s:%s -> %s", b.Exchange, b.Key, cfg.Queue)
			var e *amqp.Error
			if err := ch.QueueBind(cfg.Queue, b.Key, b.Exchange, false, nil); errors.As(err, &e) && e.Code == amqp.NotFound {
				return fmt.Errorf("%s: declare the transport that publishes to %s first: %w", what, b.Exchange, said(e))
			} else if err != nil {
				return differs(what, err)
			}
			done = append(done, what)
		}
		return nil
	})
	return done, err
}

// arguments are those of the queue. A quorum queue of RabbitMQ 4 drops what it
// delivered 20 times unless its limit is off.
func arguments(cfg Config, server amqp.Table) amqp.Table {
	args := amqp.Table{"x-queue-type": cfg.QueueType}
	if cfg.SingleActiveConsumer {
		args["x-single-active-consumer"] = true
	}
	version, _ := server["version"].(string)
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= 4 && cfg.QueueType == "quorum" {
		args["x-delivery-limit"] = int32(-1)
	}
	return args
}

// Check connects and returns an error unless the exchange and the queue of cfg
// are there. It changes nothing.
func Check(ctx context.Context, cfg Config) error {
	return look(ctx, cfg, func(cfg Config, _ *wire, ch *amqp.Channel) error {
		if cfg.Exchange != "" {
			if err := ch.ExchangeDeclarePassive(cfg.Exchange, cfg.ExchangeType, true, false, false, false, nil); err != nil {
				return differs("exchange "+cfg.Exchange, err)
			}
		}
		if cfg.Queue != "" {
			if _, err := ch.QueueDeclarePassive(cfg.Queue, true, false, false, false, nil); err != nil {
				return differs("queue "+cfg.Queue, err)
			}
		}
		return nil
	})
}

// look runs do on a channel of its own, until ctx ends.
func look(ctx context.Context, cfg Config, do func(Config, *wire, *amqp.Channel) error) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	w, err := dial(ctx, cfg)
	if err != nil {
		return err
	}
	defer w.close(errors.New("it is no longer needed"))
	return w.until(ctx, func() error {
		ch, err := w.conn.Channel()
		if err != nil {
			return unavailable("open a channel", err)
		}
		return do(cfg, w, ch)
	})
}

// differs says what to do about something that cannot be declared or is not
// there.
func differs(what string, err error) error {
	var e *amqp.Error
	if !errors.As(err, &e) || !isSoft(e) {
		return unavailable(what, err)
	}
	hint := ""
	switch e.Code {
	case amqp.PreconditionFailed:
		hint = ": it is there with other properties: change the DSN to match, or drain and delete it"
	case amqp.NotFound:
		hint = ": it does not exist, `waybill schema up --transports` declares it"
	case amqp.AccessRefused:
		hint = ": the user is not allowed to"
	}
	return fmt.Errorf("%s%s: %w", what, hint, said(e))
}
