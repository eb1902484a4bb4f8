package waybill

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A Serializer turns envelopes into records and back. The zero value uses JSON,
// the default limits and an empty registry. Set it up before use; then it is
// safe for concurrent use.
type Serializer struct {
	Types  *Types
	Codec  Codec  // nil means JSON
	Limits Limits // zero means the defaults
}

func (s *Serializer) types() *Types {
	if s.Types == nil {
		return noTypes
	}
	return s.Types
}

var noTypes = NewTypes()

func (s *Serializer) codec() Codec {
	if s.Codec == nil {
		return JSON{}
	}
	return s.Codec
}

// Encode returns env as a record. It needs a MessageID stamp, which dispatch
// sets. A raw message's body is checked, not changed.
func (s *Serializer) Encode(env *Envelope) (*Record, error) {
	name, err := s.types().NameOf(env.message)
	if err != nil {
		return nil, err
	}
	rec := &Record{Name: name, DispatchedAt: time.Now().UTC()}
	if keyed, ok := env.message.(Keyed); ok {
		rec.Key = keyed.PartitionKey()
	}
	if err := rec.setStamps(env); err != nil {
		return nil, err
	}
	if rec.Body, rec.ContentType, err = s.body(env.message); err != nil {
		return nil, err
	}
	if err := s.Limits.Check(rec); err != nil {
		return nil, err
	}
	return rec, nil
}

func (s *Serializer) body(msg any) (body []byte, contentType string, err error) {
	raw, ok := msg.(RawMessage)
	if !ok {
		body, err = s.codec().Encode(msg)
		if err != nil {
			return nil, "", fmt.Errorf("waybill: encode %T: %w", msg, atField(msg, err))
		}
		if s.codec().ContentType() == jsonType {
			err = s.checkDepth(body) // a deeper body could not be decoded
		}
		return body, s.codec().ContentType(), err
	}
	if raw.ContentType != "" && raw.ContentType != jsonType {
		return bytes.Clone(raw.Body), raw.ContentType, nil
	}
	limits := s.Limits.orDefaults()
	if len(raw.Body) > limits.Body {
		return nil, "", &LimitError{"body size of " + raw.Name, len(raw.Body), limits.Body, "Body"}
	}
	if err := checkJSON(raw.Body, limits.Depth); err != nil {
		return nil, "", fmt.Errorf("waybill: body of %s: %w", raw.Name, err)
	}
	// A copy: it may wait in a unit of work while the caller reuses its buffer.
	return bytes.Clone(raw.Body), jsonType, nil
}

func (s *Serializer) checkDepth(body []byte) error {
	if depth, max := jsonDepth(body), s.Limits.orDefaults().Depth; depth > max {
		return &LimitError{"JSON depth", depth, max, "Depth"}
	}
	return nil
}

// setStamps copies the stamps that travel, each to its field or header.
func (rec *Record) setStamps(env *Envelope) error {
	for _, stamp := range env.stamps {
		switch s := stamp.(type) {
		case MessageID:
			rec.ID = s
		case PartitionKey:
			rec.Key = string(s)
		case Delay:
			rec.Delay = time.Duration(s)
		case IdempotencyKey:
			if s == "" {
				return &InvalidError{"idempotency key", "", "it is empty, and would make all such messages duplicates of each other"}
			}
			rec.setHeader(HeaderIdempotencyKey, string(s))
		case CorrelationID:
			rec.setHeader(HeaderCorrelationID, string(s))
		case CausationID:
			rec.setHeader(HeaderCausationID, string(s))
		case header:
			if isReserved(s.name) {
				return &InvalidError{"header name", s.name, "waybill or the broker uses it: choose another"}
			}
			rec.setHeader(s.name, s.value)
		}
	}
	if rec.ID.IsZero() {
		return &InvalidError{"message id", "", "it is missing"}
	}
	return nil
}

func (rec *Record) setHeader(name, value string) {
	if rec.Headers == nil {
		rec.Headers = make(map[string]string, 4)
	}
	rec.Headers[name] = value
}

// Decode returns rec as an envelope with the stamps it carried. An error means
// that no retry with this registry can decode rec. A panic of the codec, or of a
// method such as UnmarshalJSON, is a *DecodeError around a *PanicError. Messages with an
// upcaster are converted, see [Upcast].
func (s *Serializer) Decode(rec *Record) (*Envelope, error) {
	if rec.Problem != nil {
		return nil, &DecodeError{rec.Name, rec.Problem}
	}
	typ, name, err := s.types().lookup(rec.Name)
	if err != nil {
		return nil, fmt.Errorf("%w; a renamed type decodes messages of its old name by Types.Alias", err)
	}
	limits := s.Limits.orDefaults()
	if len(rec.Body) > limits.Body {
		return nil, &DecodeError{name, &LimitError{"body size", len(rec.Body), limits.Body, "Body"}}
	}
	if typ == reflect.TypeFor[RawMessage]() {
		// A copy: a middleware may change it, and rec is stored for a retry.
		return &Envelope{RawMessage{name, rec.Key, rec.ContentType, bytes.Clone(rec.Body)}, rec.stamps(name, name)}, nil
	}
	if s.codec().ContentType() == jsonType {
		if err := checkJSON(rec.Body, limits.Depth); err != nil {
			return nil, &DecodeError{name, err}
		}
	}
	into := reflect.New(typ)
	if err := Guard(func() error { return s.codec().Decode(rec.Body, into.Interface()) }); err != nil {
		return nil, &DecodeError{name, err}
	}
	newest, message, err := s.types().upcast(name, into.Elem().Interface())
	if err != nil {
		return nil, err
	}
	return &Envelope{message, rec.stamps(newest, name)}, nil
}

// stamps returns the stamps of a message that was received as from.
func (rec *Record) stamps(name, from string) []Stamp {
	stamps := make([]Stamp, 0, 6+len(rec.Headers))
	stamps = append(stamps, rec.ID, DispatchedAt(rec.DispatchedAt))
	stamps = append(stamps, stampsOf(name, from)...)
	if rec.Key != "" {
		stamps = append(stamps, PartitionKey(rec.Key))
	}
	for header, value := range rec.Headers {
		switch header {
		case HeaderIdempotencyKey:
			stamps = append(stamps, IdempotencyKey(value))
		case HeaderCorrelationID: // which follow-ups inherit, so that a foreign one must not fail their dispatch
			if len(value) <= maxShort && checkHeader(header, value) == nil {
				stamps = append(stamps, CorrelationID(value))
			}
		case HeaderCausationID:
			stamps = append(stamps, CausationID(value))
		case HeaderHandledBy:
			for handler := range strings.SplitSeq(value, ",") {
				stamps = append(stamps, HandledBy(handler))
			}
		default:
			stamps = append(stamps, Header(header, value))
		}
	}
	return stamps
}

// MarkHandled records that handlers have succeeded, for the next attempt.
func (rec *Record) MarkHandled(handlers ...string) {
	var all []string
	if known := rec.Headers[HeaderHandledBy]; known != "" {
		all = strings.Split(known, ",")
	}
	for _, h := range handlers {
		if !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	if len(all) > 0 {
		rec.setHeader(HeaderHandledBy, strings.Join(all, ","))
	}
}
