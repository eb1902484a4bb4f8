package memory

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// lane is the outbox of one transport. DB.mu guards it.
type lane struct {
	known   bool                // by AddTransports
	rows    []outbox.ClaimedRow // in commit order
	blocked map[blockedKey]*blocked
	claimed map[blockedKey]bool // what one relay has to itself
	hints   chan struct{}
}

// blockedKey is a key, or a single row without one.
type blockedKey struct {
	key string
	row int64
}

func keyOf(row outbox.ClaimedRow) blockedKey {
	if row.Record.Key == "" {
		return blockedKey{row: row.ID}
	}
	return blockedKey{key: row.Record.Key}
}

// blocked says that the broker refused the head of a key.
type blocked struct {
	head     int64
	failures int
	until    time.Time
}

// lane returns the lane of a transport. The caller holds mu.
func (db *DB) lane(transport string) *lane {
	l, ok := db.lanes[transport]
	if !ok {
		l = &lane{blocked: map[blockedKey]*blocked{}, claimed: map[blockedKey]bool{}, hints: make(chan struct{}, 1)}
		db.lanes[transport] = l
	}
	return l
}

func (l *lane) add(id int64, rec *waybill.Record) {
	l.rows = append(l.rows, outbox.ClaimedRow{ID: id, Record: rec})
	select {
	case l.hints <- struct{}{}:
	default: // a hint is waiting already
	}
}

// AddTransports implements outbox.Writer.
func (db *DB) AddTransports(_ context.Context, names ...string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, name := range names {
		db.lane(name).known = true
	}
	return nil
}

// Lead implements outbox.Store: any number of relays may run.
func (db *DB) Lead(context.Context) (func(), error) { return func() {}, nil }

// Wake implements outbox.Store.
func (db *DB) Wake(transport string) <-chan struct{} {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.lane(transport).hints
}

// Claim implements outbox.Store.
func (db *DB) Claim(ctx context.Context, transport string, max outbox.Max) (outbox.Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	now := time.Now()
	db.moveDue(now)
	l := db.lane(transport)
	c := &claim{db: db, lane: l}
	size := 0
	for _, row := range l.rows {
		key := keyOf(row)
		b := l.blocked[key]
		if l.claimed[key] || b != nil && b.until.After(now) {
			continue
		}
		if size += sizeOf(row.Record); len(c.rows) == max.Rows || len(c.rows) > 0 && size > max.Bytes {
			break
		}
		if b != nil && b.head == row.ID {
			row.Failures = b.failures
		}
		row.Record = clone(row.Record)
		c.rows = append(c.rows, row)
	}
	for _, row := range c.rows {
		l.claimed[keyOf(row)] = true
	}
	return c, nil
}

func sizeOf(rec *waybill.Record) int {
	size := len(rec.Body)
	for name, value := range rec.Headers {
		size += len(name) + len(value)
	}
	return size
}

type claim struct {
	db   *DB
	lane *lane
	rows []outbox.ClaimedRow
}

func (c *claim) Rows() []outbox.ClaimedRow { return c.rows }

// Settle implements outbox.Claim.
func (c *claim) Settle(_ context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	heads := map[int64]bool{} // that are refused, whatever was published behind them
	for _, f := range failed {
		heads[f.Row.ID] = true
	}
	for _, row := range published {
		c.lane.rows = slices.DeleteFunc(c.lane.rows, func(r outbox.ClaimedRow) bool { return r.ID == row.ID })
		if b := c.lane.blocked[keyOf(row)]; b != nil && !heads[b.head] {
			delete(c.lane.blocked, keyOf(row))
		}
	}
	for _, f := range failed {
		b := c.lane.blocked[keyOf(f.Row)]
		if b == nil || b.head != f.Row.ID {
			b = &blocked{head: f.Row.ID}
			c.lane.blocked[keyOf(f.Row)] = b
		}
		b.failures++
		b.until = time.Now().Add(f.RetryIn)
	}
	for _, row := range c.rows {
		delete(c.lane.claimed, keyOf(row))
	}
	return nil
}

// Left implements outbox.Store.
func (db *DB) Left(_ context.Context, transport string) (outbox.Left, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	l := db.lane(transport)
	left := outbox.Left{Pending: len(l.rows)}
	for _, row := range l.rows {
		if l.blocked[keyOf(row)] != nil {
			left.Blocked++
		}
	}
	for _, d := range db.delayed {
		if d.row.Queue == "" && d.row.Transport == transport {
			left.Delayed++
		}
	}
	return left, nil
}

// Pending returns what was dispatched to a transport and is not published yet:
// in commit order, and then what is delayed, the earliest due first.
func (db *DB) Pending(transport string) []*waybill.Record {
	transport = cmp.Or(transport, outbox.DefaultTransport)
	db.mu.Lock()
	defer db.mu.Unlock()
	db.moveDue(time.Now())
	var recs []*waybill.Record
	for _, row := range db.lane(transport).rows {
		recs = append(recs, clone(row.Record))
	}
	for _, d := range db.delayed {
		if d.row.Queue == "" && d.row.Transport == transport {
			recs = append(recs, clone(d.row.Record))
		}
	}
	return recs
}
