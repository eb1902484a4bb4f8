package wayamqp

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// decode reads a message, also one of another program. A message without a valid id
// or name gets a Problem, so that it is neither decoded nor dropped. failures is
// the number of earlier failed attempts.
func (cfg *Config) decode(d *amqp.Delivery, now time.Time) (rec *waybill.Record, failures int) {
	own, others := split(d.Headers)
	rec = &waybill.Record{
		Name:        cmp.Or(own[headerType], d.Type),
		Key:         own[headerPartitionKey],
		ContentType: cmp.Or(d.ContentType, own[headerContentType], "application/json"),
		Headers:     others,
		Body:        d.Body,
	}
	if id, ok := asText(d.CorrelationId); ok && id != "" && others[waybill.HeaderCorrelationID] == "" {
		rec.Headers[waybill.HeaderCorrelationID] = id
	}
	var err error
	switch id := cmp.Or(own[headerMessageID], d.MessageId); {
	case id == "":
		rec.Problem = errors.New("the message has no id: want a UUID or ULID as the property message_id or the header " + headerMessageID)
	case rec.Name == "":
		rec.Problem = errors.New("the message has no name: want one as the property type or the header " + headerType)
		fallthrough
	default:
		if rec.ID, err = waybill.ParseMessageID(id); err != nil {
			rec.Problem = err
		}
	}
	rec.DispatchedAt = dispatched(own[headerDispatchedAt], d.Timestamp, rec.ID, now)
	if attempt, err := strconv.Atoi(own[headerAttempt]); err == nil && attempt > 1 {
		failures = min(attempt-1, math.MaxInt32)
	}
	if rec.Key == "" && rec.Problem == nil && cfg.KeyOf != nil {
		if rec.Key, err = cfg.keyOf(rec); err != nil {
			rec.Problem = err
		}
	}
	return rec, failures
}

// keyOf calls KeyOf. A panic over the bytes of a stranger is that message's error.
func (cfg *Config) keyOf(rec *waybill.Record) (key string, err error) {
	if err := waybill.Guard(func() error { key = cfg.KeyOf(rec); return nil }); err != nil {
		return "", fmt.Errorf("wayamqp: KeyOf: %w", err)
	}
	return key, nil
}

// dispatched returns the best estimate of the time of dispatch: the header; the
// time in a UUIDv7, unless the timestamp property contradicts it; the property; or
// the time of receipt.
func dispatched(exact string, second time.Time, id waybill.MessageID, now time.Time) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, exact); err == nil {
		return at.UTC()
	}
	made, ok := madeAt(id)
	switch {
	case ok && (second.IsZero() || made.Sub(second).Abs() < sameDispatch):
		return made
	case !second.IsZero():
		return second.UTC()
	}
	return now.UTC()
}

// sameDispatch is the largest difference between the time in an id and the
// timestamp property, which has whole seconds. With a larger one the id is the
// caller's own, made at another time.
const sameDispatch = 2 * time.Second

// madeAt returns the time in a UUIDv7.
func madeAt(id waybill.MessageID) (at time.Time, ok bool) {
	if id[6]>>4 != 7 || id[8]>>6 != 2 {
		return at, false
	}
	var ms int64
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms).UTC(), true
}

// split returns the headers that carry a record's fields, and all other headers,
// without the headers that a broker adds or a publisher numbers its publishes with,
// and without x-handled-by: a Consumer keeps that of a retry itself.
func split(table amqp.Table) (own, others map[string]string) {
	own, others = map[string]string{}, make(map[string]string, len(table))
	for name, value := range table {
		text, ok := asText(value)
		if !ok {
			continue
		}
		switch name {
		case headerType, headerMessageID, headerAttempt, headerPartitionKey, headerDispatchedAt, headerContentType:
			own[name] = text
		case headerPublishNo, "x-delivery-count", "x-acquired-count":
		case waybill.HeaderHandledBy: // it would keep handlers from running, and anybody may send it
		default:
			if !strings.HasPrefix(name, "x-first-death-") && !strings.HasPrefix(name, "x-last-death-") {
				others[name] = text
			}
		}
	}
	return own, others
}

// asText returns a header's value as text, and whether it has one: nothing,
// nested tables, lists and bytes that are not UTF-8 have none.
func asText(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, utf8.ValidString(v)
	case []byte:
		return string(v), utf8.Valid(v)
	case bool, int8, uint8, int16, uint16, int32, uint32, int64, uint64, int, float32, float64:
		return fmt.Sprint(v), true
	case time.Time:
		return v.UTC().Format(time.RFC3339), true
	case amqp.Decimal:
		return strconv.FormatFloat(float64(v.Value)/math.Pow10(int(v.Scale)), 'f', int(v.Scale), 64), true
	}
	return "", false
}
