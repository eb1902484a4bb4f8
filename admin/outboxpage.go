package admin

import "time"

// Parts reports whether q selects pending messages, and whether it selects delayed ones.
func (q OutboxQuery) Parts() (pending, delayed bool) {
	return q.Behind == nil || q.Behind.DueAt == nil, q.Behind != nil || q.After <= 0
}

// Rows returns the ids above which q selects pending messages with a key and without. The
// two may have equal ids: the one with a key comes first.
func (q OutboxQuery) Rows() (keyed, unkeyed int64) {
	switch b := q.Behind; {
	case b == nil:
		return q.After, q.After
	case b.Key != "":
		return b.Row, b.Row - 1
	default:
		return b.Row, b.Row
	}
}

// Delayed returns the delayed message behind which q selects, by its due time and row, or a
// time before all.
func (q OutboxQuery) Delayed() (due time.Time, row int64) {
	if pending, _ := q.Parts(); pending {
		return time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC), 0
	}
	return *q.Behind.DueAt, q.Behind.Row
}
