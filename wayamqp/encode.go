package wayamqp

import (
	"cmp"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// The headers that carry fields of a record. A Publisher sends only
// headerPartitionKey, a Consumer reads all. See docs/wire.md.
const (
	headerType         = "type"
	headerMessageID    = "x-message-id"
	headerAttempt      = "x-attempt"
	headerPartitionKey = "x-partition-key"
	headerDispatchedAt = "x-dispatched-at"
	headerContentType  = "content-type"
	headerPublishNo    = "x-publish-no" // of former versions, ignored
)

const maxTable = 64 << 10 // bytes of an encoded header table

// encode returns rec as an AMQP message. It refuses a record for which the client
// library or the broker would end the connection, for all messages. It fills
// headers, which is empty. frame is the largest frame the broker takes, zero for
// any.
func (cfg *Config) encode(headers amqp.Table, rec *waybill.Record, exchange, routingKey string, frame int) (amqp.Publishing, error) {
	if rec.Problem != nil {
		return amqp.Publishing{}, rec.Problem
	}
	for name, value := range rec.Headers {
		switch name {
		case "CC", "BCC":
			return amqp.Publishing{}, &waybill.InvalidError{What: "header", Value: name, Problem: "the broker would misroute the message or refuse it"}
		case waybill.HeaderCorrelationID: // has a property
		case headerType, headerMessageID, headerAttempt, headerPartitionKey, headerDispatchedAt, headerContentType, headerPublishNo, waybill.HeaderHandledBy:
			// A consumer would prefer them to the properties, or not run handlers.
		default:
			headers[name] = value
		}
	}
	if cfg.KeyHeader && rec.Key != "" {
		headers[headerPartitionKey] = rec.Key
	}
	msg := amqp.Publishing{
		Headers: headers, ContentType: cmp.Or(rec.ContentType, "application/json"), DeliveryMode: amqp.Persistent,
		CorrelationId: rec.Headers[waybill.HeaderCorrelationID], MessageId: rec.ID.String(), Timestamp: rec.DispatchedAt.Truncate(time.Second), Type: rec.Name, Body: rec.Body,
	}
	return msg, check(&msg, exchange, routingKey, frame)
}

func check(msg *amqp.Publishing, exchange, routingKey string, frame int) error {
	for _, short := range []struct{ what, value string }{
		{"exchange", exchange}, {"routing key", routingKey}, {"message name", msg.Type},
		{"content type", msg.ContentType}, {waybill.HeaderCorrelationID, msg.CorrelationId},
	} {
		if len(short.value) > maxShort {
			return &waybill.LimitError{What: short.what + " length", Got: len(short.value), Max: maxShort}
		}
	}
	table := 0
	for name, value := range msg.Headers {
		if len(name) > maxShort {
			return &waybill.LimitError{What: fmt.Sprintf("header name length (%.40s...)", name), Got: len(name), Max: maxShort}
		}
		table += 1 + len(name) + 5 + len(value.(string))
	}
	if table > maxTable {
		return &waybill.LimitError{What: "header size", Got: table, Max: maxTable}
	}
	// Class, weight, body size and flags; then the properties, each short string
	// with its length; then the frame's own ends.
	size := 14 + 4 + table + 1 + 8 + 4 + len(msg.ContentType) + len(msg.CorrelationId) + len(msg.MessageId) + len(msg.Type) + 8
	if frame > 0 && size > frame {
		return &waybill.LimitError{What: "header frame size", Got: size, Max: frame}
	}
	return nil
}
