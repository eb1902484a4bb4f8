package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
)

// A UniqueKey is the key that a message takes for a time; see waybill.Unique.
type UniqueKey struct {
	Key string // NAME/KEY of the message's name and its own key, at most 446 bytes
	For time.Duration
}

// UniqueHolder returns the message of rows that takes a unique key, or the zero id.
func UniqueHolder(rows []Row, key string) waybill.MessageID {
	for _, row := range rows {
		if row.Unique != nil && row.Unique.Key == key {
			return row.Record.ID
		}
	}
	return waybill.MessageID{}
}

// uniqueKey returns the unique key of env, which travels under name, or nil.
func uniqueKey(env *waybill.Envelope, name string) (*UniqueKey, error) {
	u, ok := waybill.Last[waybill.Unique](env)
	const what = "unique key"
	switch {
	case !ok:
		return nil, nil
	case u.Key == "":
		return nil, &waybill.InvalidError{What: what, Problem: "it is empty, and would make one message of all"}
	case len(u.Key) > 255:
		return nil, &waybill.LimitError{What: what + " length", Got: len(u.Key), Max: 255}
	case !utf8.ValidString(u.Key) || strings.ContainsRune(u.Key, 0):
		return nil, &waybill.InvalidError{What: what, Value: u.Key, Problem: "it is not UTF-8, or has a NUL"}
	case u.For < time.Microsecond:
		return nil, &waybill.InvalidError{What: "time of unique key " + u.Key, Value: u.For.String(), Problem: "it needs a time above zero: For is how long later dispatches send nothing"}
	}
	return &UniqueKey{name + "/" + u.Key, u.For}, nil // a name has no "/"
}

// holders locks the unique keys of rows, and returns the messages that have them already,
// by the record that is not to be sent. Keys are locked in ascending order: calls with
// several of them do not deadlock with each other.
func (o *Outbox[TX]) holders(ctx context.Context, tx TX, rows []Row) (map[*waybill.Record]waybill.MessageID, error) {
	unique := slices.DeleteFunc(slices.Clone(rows), func(row Row) bool { return row.Unique == nil })
	slices.SortStableFunc(unique, func(a, b Row) int { return strings.Compare(a.Unique.Key, b.Unique.Key) })
	held := map[*waybill.Record]waybill.MessageID{}
	for i, row := range unique {
		if i > 0 && unique[i-1].Unique.Key == row.Unique.Key {
			before := unique[i-1].Record
			held[row.Record] = before.ID
			if first, ok := held[before]; ok {
				held[row.Record] = first
			}
			continue
		}
		holder, err := o.writer.LockUnique(ctx, tx, row.Unique.Key)
		if err != nil {
			return nil, fmt.Errorf("outbox: unique key of %s: %w", row.Record.Name, err)
		}
		if !holder.IsZero() {
			held[row.Record] = holder
		}
	}
	return held, nil
}
