package wayamqp

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A Defect is a property of an exchange or a queue that loses messages or their order.
type Defect struct {
	Kind            DefectKind
	Problem, Remedy string // a sentence each
}

// A DefectKind is what is wrong with an exchange or a queue.
type DefectKind int

const (
	Missing       DefectKind = iota + 1 // it does not exist
	DropsMessages                       // by a delivery limit, a length, or by time
	Unordered                           // it has no single active consumer, and messages with keys
	OtherType                           // it is classic where the configuration says quorum, or the reverse
)

// Examine returns the defects of the exchange and the queue of cfg. It changes nothing. Of
// policies, and of a queue that the user may not declare, the broker tells nothing but that it exists.
func Examine(ctx context.Context, cfg Config) (found []Defect, err error) {
	err = inspect(ctx, cfg, func(cfg Config, w *conn, ch *amqp.Channel) error {
		if cfg.Exchange != "" {
			err := ch.ExchangeDeclarePassive(cfg.Exchange, cfg.ExchangeType, true, false, false, false, nil)
			switch {
			case missing(err):
				found = append(found, Defect{Missing, "the exchange " + cfg.Exchange + " does not exist: messages to it block", "`waybill schema up --transports` declares it"})
			case err != nil:
				return differs("exchange "+cfg.Exchange, err)
			}
		}
		if cfg.Queue == "" {
			return nil
		}
		more, err := examineQueue(cfg, w)
		found = append(found, more...)
		return err
	})
	return found, err
}

func missing(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.NotFound
}

// examineQueue uses channels of its own: the broker closes one with each refusal.
func examineQueue(cfg Config, w *conn) (found []Defect, err error) {
	ch, err := w.client.Channel()
	if err != nil {
		return nil, unavailable("open a channel", err)
	}
	_, err = ch.QueueDeclarePassive(cfg.Queue, true, false, false, false, nil)
	switch {
	case missing(err):
		return []Defect{{Missing, "the queue " + cfg.Queue + " does not exist: its consumers end with an error", "`waybill schema up --transports` declares it"}}, nil
	case err != nil:
		return nil, differs("queue "+cfg.Queue, err)
	}
	if other, _ := properties(cfg, w)["x-queue-type"].(string); other != "" && other != cfg.QueueType {
		found = append(found, Defect{OtherType, fmt.Sprintf("the queue %s is %s, not %s: a classic queue is on one node of the broker, and away with it", cfg.Queue, other, cfg.QueueType),
			"drain and delete it, and `waybill schema up --transports` declares it; or write queue_type=" + other})
		cfg.QueueType = other
	}
	if arg, hint := dropsBy(cfg, w); arg != "" {
		found = append(found, Defect{DropsMessages, fmt.Sprintf("the queue %s drops messages that no worker has handled, by %s", cfg.Queue, arg), hint})
	}
	if cfg.SingleActiveConsumer && lacksSingleConsumer(cfg, w) {
		found = append(found, Defect{Unordered, "the queue " + cfg.Queue + " does not keep the order of keys", noSingleConsumer})
	}
	return found, nil
}
