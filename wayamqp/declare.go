package wayamqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
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
	err := inspect(ctx, cfg, func(cfg Config, w *conn, ch *amqp.Channel) error {
		if cfg.Exchange != "" {
			what := fmt.Sprintf("exchange %s (%s)", cfg.Exchange, cfg.ExchangeType)
			if err := ch.ExchangeDeclare(cfg.Exchange, cfg.ExchangeType, true, false, false, false, nil); err != nil {
				return differs(what, err)
			}
			done = append(done, what)
		}
		if cfg.Queue != "" {
			words, err := declareQueue(cfg, w)
			if err != nil {
				return err
			}
			done = append(done, words...)
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

// declareQueue declares the queue of cfg, on its own channels: the broker closes
// one with each refusal. An existing quorum queue with another delivery limit than
// a new one stays as it is, and words tell the operator what to do.
func declareQueue(cfg Config, w *conn) (words []string, err error) {
	what := fmt.Sprintf("queue %s (%s)", cfg.Queue, cfg.QueueType)
	args := arguments(cfg, w.client.Properties)
	err = declareOnce(cfg, w, args)
	if inequivalent(err, argDeliveryLimit) {
		delete(args, argDeliveryLimit)
		if err = declareOnce(cfg, w, args); err == nil {
			return []string{what, noDeliveryLimit(cfg)}, nil
		}
	}
	if err != nil {
		return nil, differs(what, err)
	}
	return []string{what}, nil
}

func declareOnce(cfg Config, w *conn, args amqp.Table) error {
	ch, err := w.client.Channel()
	if err != nil {
		return err
	}
	if _, err = ch.QueueDeclare(cfg.Queue, true, false, false, false, args); err != nil {
		return err // and the broker has closed the channel
	}
	return ch.Close()
}

const (
	argDeliveryLimit  = "x-delivery-limit"
	argSingleConsumer = "x-single-active-consumer"
)

// inequivalent reports whether the broker refused a declaration because the queue's
// argument arg is missing or has another value. The code says only that some
// property differs.
func inequivalent(err error, arg string) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "inequivalent arg '"+arg+"'")
}

// noDeliveryLimit tells an operator how to remove the delivery limit of an existing
// queue.
func noDeliveryLimit(cfg Config) string {
	host := ""
	if u, err := amqp.ParseURI(cfg.URL); err == nil && u.Vhost != "/" {
		host = "-p " + u.Vhost + " "
	}
	return fmt.Sprintf("queue %s was made with another delivery limit: RabbitMQ 4 drops a message that was given back more often, 20 times if none is set, unless a policy takes the limit off: "+
		"rabbitmqctl set_policy %sunlimited-%s '^%s$' '{\"delivery-limit\":-1}' --apply-to queues", cfg.Queue, host, cfg.Queue, regexp.QuoteMeta(cfg.Queue))
}

// arguments are those of the queue. A quorum queue of RabbitMQ 4 drops a message
// that was given back more than 20 times, unless its limit is off.
func arguments(cfg Config, server amqp.Table) amqp.Table {
	args := amqp.Table{"x-queue-type": cfg.QueueType}
	if cfg.SingleActiveConsumer {
		args[argSingleConsumer] = true
	}
	version, _ := server["version"].(string)
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n >= 4 && cfg.QueueType == "quorum" {
		args[argDeliveryLimit] = int32(-1)
	}
	return args
}

// differing finds in a refused declaration the argument that differs, and its value in the queue.
var differing = regexp.MustCompile(`inequivalent arg '([^']+)'.* but current is (?:none|(?:the value )?'([^']*)'(?: of type '(\w+)')?)`)

// properties returns the arguments of the existing queue of cfg, or nil where the broker
// does not tell them, as without the permission to declare. Each refusal of a declaration
// names one that differs, which the next declaration has, down to the type: arguments that
// are compared after another type stay unknown, and so do policies.
func properties(cfg Config, w *conn) amqp.Table {
	args := arguments(cfg, w.client.Properties)
	for range 20 { // more than there are
		err := declareOnce(cfg, w, args)
		if err == nil {
			return args
		}
		var e *amqp.Error
		if !errors.As(err, &e) || e.Code != amqp.PreconditionFailed {
			return nil
		}
		found := differing.FindStringSubmatch(e.Reason)
		if found == nil {
			return nil
		}
		arg, value := found[1], found[2]
		if arg == "x-queue-type" { // with that the broker would make a queue that was deleted meanwhile
			args[arg] = cmp.Or(value, "classic")
			return args
		}
		_, wasBool := args[arg].(bool)
		switch n, err := strconv.ParseInt(value, 10, 64); {
		case strings.HasSuffix(e.Reason, "current is none"):
			delete(args, arg)
		case found[3] == "bool" || wasBool:
			args[arg] = value == "true"
		case err == nil && found[3] != "longstr":
			args[arg] = n
		default:
			args[arg] = value
		}
	}
	return nil
}

// lacksSingleConsumer reports whether the existing queue of cfg is known to have no
// single active consumer.
func lacksSingleConsumer(cfg Config, w *conn) bool {
	args := properties(cfg, w)
	return args != nil && args[argSingleConsumer] != true
}

// dropsBy returns the argument by which the existing queue of cfg is known to drop
// messages, with the remedy.
func dropsBy(cfg Config, w *conn) (arg, hint string) {
	args := properties(cfg, w)
	if args == nil {
		return "", ""
	}
	if fmt.Sprint(args[argDeliveryLimit]) != fmt.Sprint(arguments(cfg, w.client.Properties)[argDeliveryLimit]) {
		return argDeliveryLimit, noDeliveryLimit(cfg)
	}
	overflow, _ := args["x-overflow"].(string)
	for _, drops := range []struct{ arg, why string }{
		{"x-message-ttl", "messages leave the queue unhandled when they have waited that long"},
		{"x-expires", "the queue is deleted with its messages when no worker has run for that long"},
		{"x-max-length", "the oldest messages of a full queue make room for new ones, unless x-overflow is reject-publish"},
		{"x-max-length-bytes", "the oldest messages of a full queue make room for new ones, unless x-overflow is reject-publish"},
	} {
		refuses := strings.HasPrefix(drops.arg, "x-max-length") && strings.HasPrefix(overflow, "reject-publish")
		if _, given := args[drops.arg]; given && !refuses {
			return drops.arg, drops.why + ": drain and delete it, and `waybill schema up --transports` declares it without"
		}
	}
	return "", ""
}

const noSingleConsumer = "it has no single active consumer: one that connects again, or a second one, is given later messages of a key before earlier ones. " +
	"Drain and delete it, and `waybill schema up --transports` declares it with one; or write single_active_consumer=false if the order does not matter"

// Check connects and returns an error unless the exchange and the queue of cfg
// exist, the queue with a single active consumer if cfg asks for one. It changes
// nothing.
func Check(ctx context.Context, cfg Config) error {
	return inspect(ctx, cfg, func(cfg Config, w *conn, ch *amqp.Channel) error {
		if cfg.Exchange != "" {
			if err := ch.ExchangeDeclarePassive(cfg.Exchange, cfg.ExchangeType, true, false, false, false, nil); err != nil {
				return differs("exchange "+cfg.Exchange, err)
			}
		}
		if cfg.Queue != "" {
			if _, err := ch.QueueDeclarePassive(cfg.Queue, true, false, false, false, nil); err != nil {
				return differs("queue "+cfg.Queue, err)
			}
			if cfg.SingleActiveConsumer && lacksSingleConsumer(cfg, w) {
				return fmt.Errorf("queue %s: %s", cfg.Queue, noSingleConsumer)
			}
		}
		return nil
	})
}

// Depth returns how many messages of cfg.Queue no consumer has, and how many consumers it has.
// It changes nothing. A queue that does not exist is an error.
func Depth(ctx context.Context, cfg Config) (ready, consumers int, err error) {
	err = inspect(ctx, cfg, func(cfg Config, _ *conn, ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(cfg.Queue, true, false, false, false, nil)
		if err != nil {
			return differs("queue "+cfg.Queue, err)
		}
		ready, consumers = q.Messages, q.Consumers
		return nil
	})
	return ready, consumers, err
}

// inspect runs do on a new channel, until ctx ends.
func inspect(ctx context.Context, cfg Config, do func(Config, *conn, *amqp.Channel) error) error {
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
		ch, err := w.client.Channel()
		if err != nil {
			return unavailable("open a channel", err)
		}
		return do(cfg, w, ch)
	})
}

// differs returns the error of a declaration, with a hint for the operator.
func differs(what string, err error) error {
	var e *amqp.Error
	if !errors.As(err, &e) || !isSoft(e) {
		return unavailable(what, err)
	}
	hint := ""
	switch e.Code {
	case amqp.PreconditionFailed:
		hint = ": it is there with other properties: change the DSN to match, or drain and delete it"
		if inequivalent(e, argSingleConsumer) {
			hint = ": it is there without a single active consumer, which key_header=true implies: write single_active_consumer=false if the order of keys does not matter, or drain and delete it"
			if strings.Contains(e.Reason, "received none") {
				hint = ": it is there with a single active consumer: write single_active_consumer=true into the DSN, or drain and delete it"
			}
		}
	case amqp.NotFound:
		hint = ": it does not exist, `waybill schema up --transports` declares it"
	case amqp.AccessRefused:
		hint = ": the user is not allowed to"
	}
	return fmt.Errorf("%s%s: %w", what, hint, said(e))
}
