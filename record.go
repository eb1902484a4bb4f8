package waybill

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A Record is a message encoded for a table or a wire. Dispatch writes it, relays
// publish it and workers decode it; its body is never re-encoded on the way.
type Record struct {
	ID           MessageID
	Name         string
	Key          string            // partition key; empty means unordered
	ContentType  string            // of Body
	Headers      map[string]string // of the application, and the Header constants below
	Body         []byte
	DispatchedAt time.Time     // UTC
	Delay        time.Duration // from dispatch; zero means at once
	// Problem is the error of a transport that could not read all of a stored message.
	// Such a record is neither published nor decoded.
	Problem error
}

// The headers that waybill sets, see docs/schema.md.
const (
	HeaderCorrelationID  = "x-correlation-id"
	HeaderCausationID    = "x-causation-id"
	HeaderIdempotencyKey = "x-idempotency-key"
	HeaderHandledBy      = "x-handled-by" // names of handlers that need not run again, comma separated
)

// reserved are the header names an application cannot set: names of waybill and of a
// record's fields, and names that could make a broker refuse or misroute a message.
var reserved = map[string]bool{
	HeaderCorrelationID: true, HeaderCausationID: true, HeaderIdempotencyKey: true, HeaderHandledBy: true,
	"x-message-id": true, "x-attempt": true, "x-partition-key": true, "x-publish-no": true, "x-dispatched-at": true, "type": true, "content-type": true,
	"user_id": true, "expiration": true, "cc": true, "bcc": true,
	"x-death": true, "x-delivery-count": true, "x-acquired-count": true,
}

// isReserved reports whether an application cannot set a header: names that a broker adds
// are no part of a received message.
func isReserved(name string) bool {
	name = strings.ToLower(name)
	return reserved[name] || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// Limits bounds the size of a message. The zero value means the defaults.
type Limits struct {
	Body        int // bytes; zero means 1 MiB
	Depth       int // nesting of a JSON body; zero means 100
	Headers     int // how many; zero means 64
	HeaderBytes int // names and values together; zero means 32 KiB
}

const (
	maxKey   = 255 // width of the partition_key column, in bytes
	maxShort = 255 // an AMQP short string
)

// short are the headers that travel as AMQP short strings or are columns.
var short = map[string]bool{HeaderCorrelationID: true, HeaderCausationID: true, HeaderIdempotencyKey: true}

func (l Limits) orDefaults() Limits {
	for _, d := range []struct {
		field *int
		value int
	}{{&l.Body, 1 << 20}, {&l.Depth, 100}, {&l.Headers, 64}, {&l.HeaderBytes, 32 << 10}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	return l
}

// Check returns an error when rec exceeds the limits or is malformed, so that a
// message that a broker would refuse is not written.
func (l Limits) Check(rec *Record) error {
	l = l.orDefaults()
	if err := checkName(rec.Name); err != nil {
		return err
	}
	if err := checkKey(rec.Key); err != nil {
		return err
	}
	if len(rec.Body) > l.Body {
		return &LimitError{"body size of " + rec.Name, len(rec.Body), l.Body, "Body"}
	}
	if len(rec.Headers) > l.Headers {
		return &LimitError{"header count of " + rec.Name, len(rec.Headers), l.Headers, "Headers"}
	}
	if rec.Delay < 0 {
		return &InvalidError{"delay", rec.Delay.String(), "it is negative"}
	}
	if err := checkHeader("content-type", rec.ContentType); err != nil {
		return err
	}
	if len(rec.ContentType) > maxShort {
		return &LimitError{"content type length", len(rec.ContentType), maxShort, ""}
	}
	total := 0
	for name, value := range rec.Headers {
		if err := checkHeader(name, value); err != nil {
			return err
		}
		if short[name] && len(value) > maxShort {
			return &LimitError{name + " length", len(value), maxShort, ""}
		}
		total += len(name) + len(value)
	}
	if total > l.HeaderBytes {
		return &LimitError{"header size of " + rec.Name, total, l.HeaderBytes, "HeaderBytes"}
	}
	return nil
}

func checkKey(key string) error {
	switch {
	case len(key) > maxKey:
		return &LimitError{"partition key length", len(key), maxKey, ""}
	case !utf8.ValidString(key):
		return &InvalidError{"partition key", key, "it is not UTF-8"}
	case strings.ContainsRune(key, 0):
		return &InvalidError{"partition key", key, "it contains NUL"}
	}
	return nil
}

// checkHeader accepts the token characters of RFC 9110 in names and any
// printable text in values.
func checkHeader(name, value string) error {
	if name == "" || len(name) > maxShort {
		return &InvalidError{"header name", name, fmt.Sprintf("it has %d bytes, allowed are 1 to %d", len(name), maxShort)}
	}
	for i := range len(name) {
		c := name[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return &InvalidError{"header name", name, fmt.Sprintf("%q is not allowed in it: use letters, digits, '-' and '_'", c)}
		}
	}
	if !utf8.ValidString(value) {
		return &InvalidError{"header " + name, value, "its value is not UTF-8"}
	}
	for _, r := range value {
		if r < ' ' && r != '\t' || r == 0x7f {
			return &InvalidError{"header " + name, value, "its value contains a control character"}
		}
	}
	return nil
}
