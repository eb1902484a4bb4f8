package waybill

import (
	"database/sql/driver"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"

	"github.com/gofrs/uuid/v5"
)

// MessageID identifies a message for its whole life. It is made once, at
// dispatch, and every delivery, retry and replay carries it. As a stamp it
// sets the id of a dispatch (a UUID or a ULID).
//
// It prints and stores as a UUID (RFC 9562); a ULID is the same 128 bits.
type MessageID uuid.UUID

// NewMessageID returns a new UUIDv7. Ids made by one process sort in the order
// they were made; an id is unique, not secret.
func NewMessageID() (MessageID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return MessageID{}, fmt.Errorf("waybill: message id: %w", err)
	}
	return MessageID(id), nil
}

// ParseMessageID reads a UUID in its 36 character form or a ULID in its 26
// character form (Crockford base32, https://github.com/ulid/spec).
func ParseMessageID(s string) (MessageID, error) {
	var (
		id  uuid.UUID
		err error
	)
	switch len(s) {
	case 36:
		id, err = uuid.FromString(s)
	case 26:
		id, err = parseULID(s)
	default:
		err = errors.New("want a UUID (36 characters) or a ULID (26 characters)")
	}
	if err == nil && id.IsNil() {
		err = errors.New("the nil id identifies nothing")
	}
	if err != nil {
		return MessageID{}, fmt.Errorf("waybill: message id %q: %w", clip(s, 60), err)
	}
	return MessageID(id), nil
}

// derivedFrom returns the id of the message that a handler dispatches under label
// while it handles parent: a UUIDv5, so that a repeated run computes the same id.
func derivedFrom(parent MessageID, handler, label string) MessageID {
	return MessageID(uuid.NewV5(uuid.UUID(parent), handler+"\x00"+label))
}

// String returns the UUID form, lower case.
func (id MessageID) String() string { return uuid.UUID(id).String() }

// IsZero reports whether id is unset.
func (id MessageID) IsZero() bool { return id == MessageID{} }

// MarshalText returns the UUID form.
func (id MessageID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText reads the forms that ParseMessageID accepts.
func (id *MessageID) UnmarshalText(text []byte) error {
	parsed, err := ParseMessageID(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}

// Value stores the id as its 16 bytes.
func (id MessageID) Value() (driver.Value, error) { return id[:], nil }

// Scan reads the 16 bytes that Value stores.
func (id *MessageID) Scan(src any) error {
	b, ok := src.([]byte)
	if !ok || len(b) != len(id) {
		return fmt.Errorf("waybill: a stored message id is 16 bytes, this is a %T", src)
	}
	copy(id[:], b)
	return nil
}

// Stamp marks MessageID as a stamp.
func (MessageID) Stamp() {}

var crockford = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding)

// parseULID reads 26 characters of 5 bits; the first carries only 3, so two
// zero characters in front and six leading zero bits make whole bytes.
func parseULID(s string) (uuid.UUID, error) {
	if s[0] > '7' {
		return uuid.Nil, errors.New("a ULID starts with 0 to 7")
	}
	raw, err := crockford.DecodeString("000000" + strings.ToUpper(s))
	if err != nil || len(raw) != 20 { // the decoder skips line breaks
		return uuid.Nil, errors.New("not a ULID")
	}
	return uuid.FromBytes(raw[4:])
}

// clip shortens s for an error text.
func clip(s string, max int) string {
	if len(s) <= max {
		return s
	}
	return strings.ToValidUTF8(s[:max], "") + "..."
}
