package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// transport is the outbox of one transport. DB.mu guards it.
type transport struct {
	known   bool                // by AddTransports
	rows    []outbox.ClaimedRow // in commit order
	failed  []*waybill.Record   // dead letters, the oldest first
	blocked map[blockedKey]*blocked
	claimed map[blockedKey]bool // keys, and rows without one, of open claims
	hints   map[outbox.Part]chan struct{}
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

// blocked is the blocked entry of a key, or of a row without one.
type blocked struct {
	head     int64
	failures int
	until    time.Time
	parked   bool
}

// transport returns the outbox of a transport. The caller holds mu.
func (db *DB) transport(name string) *transport {
	t, ok := db.transports[name]
	if !ok {
		t = &transport{blocked: map[blockedKey]*blocked{}, claimed: map[blockedKey]bool{}, hints: map[outbox.Part]chan struct{}{outbox.Keyed: make(chan struct{}, 1), outbox.Unkeyed: make(chan struct{}, 1)}}
		db.transports[name] = t
	}
	return t
}

func (t *transport) add(id int64, rec *waybill.Record) {
	t.rows = append(t.rows, outbox.ClaimedRow{ID: id, Record: rec})
	part := outbox.Keyed
	if rec.Key == "" {
		part = outbox.Unkeyed
	}
	select {
	case t.hints[part] <- struct{}{}:
	default: // a hint is waiting already
	}
}

// AddTransports implements outbox.Writer.
func (db *DB) AddTransports(_ context.Context, names ...string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, name := range names {
		db.transport(name).known = true
	}
	return nil
}

// Transports implements outbox.Store.
func (db *DB) Transports(context.Context) (names []string, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(db.transports)) {
		if db.transports[name].known {
			names = append(names, name)
		}
	}
	return names, nil
}

// Traits implements outbox.Store.
func (db *DB) Traits() outbox.StoreTraits { return outbox.StoreTraits{} }

// Report implements outbox.Store: there is no operator.
func (db *DB) Report(context.Context, outbox.Report) error { return nil }

// ListenError implements outbox.Store: there is no other process.
func (db *DB) ListenError() string { return "" }

// StartRelay implements outbox.Store: any number of relays may run.
func (db *DB) StartRelay(context.Context) (func(), error) { return func() {}, nil }

// Wake implements outbox.Store.
func (db *DB) Wake(transport string, part outbox.Part) <-chan struct{} {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.transport(transport).hints[part]
}

// Claim implements outbox.Store.
func (db *DB) Claim(ctx context.Context, name string, part outbox.Part, limit outbox.ClaimLimit) (outbox.Claim, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	now := time.Now()
	db.moveDue(now)
	t := db.transport(name)
	c := &claim{db: db, transport: t}
	size := 0
	for _, row := range t.rows {
		key := keyOf(row)
		b := t.blocked[key]
		if t.claimed[key] || partOf(row, b) != part {
			continue
		}
		if part == outbox.Retries {
			if b.head != row.ID || b.parked || b.until.After(now) {
				continue
			}
			row.Failures = b.failures
		}
		if size += sizeOf(row.Record); len(c.rows) == limit.Rows || len(c.rows) > 0 && size > limit.Bytes {
			break
		}
		row.Record = clone(row.Record)
		c.rows = append(c.rows, row)
	}
	for _, row := range c.rows {
		t.claimed[keyOf(row)] = true
	}
	return c, nil
}

// partOf returns the part that a row belongs to; b is its blocked entry, or nil.
func partOf(row outbox.ClaimedRow, b *blocked) outbox.Part {
	switch {
	case b != nil:
		return outbox.Retries
	case row.Record.Key == "":
		return outbox.Unkeyed
	}
	return outbox.Keyed
}

func sizeOf(rec *waybill.Record) int {
	size := len(rec.Body)
	for name, value := range rec.Headers {
		size += len(name) + len(value)
	}
	return size
}

type claim struct {
	db        *DB
	transport *transport
	rows      []outbox.ClaimedRow
}

func (c *claim) Rows() []outbox.ClaimedRow { return c.rows }

// Settle implements outbox.Claim.
func (c *claim) Settle(_ context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	for _, row := range published {
		c.transport.remove(row)
	}
	for _, f := range failed {
		if f.Skips() {
			c.transport.remove(f.Row)
			c.transport.failed = append(c.transport.failed, clone(f.Row.Record))
			continue
		}
		b := c.transport.blocked[keyOf(f.Row)]
		if b == nil {
			b = &blocked{head: f.Row.ID}
			c.transport.blocked[keyOf(f.Row)] = b
		}
		if !f.Suspect {
			b.failures++
		}
		b.until, b.parked = time.Now().Add(f.RetryIn), f.Parks()
	}
	for _, row := range c.rows {
		delete(c.transport.claimed, keyOf(row))
	}
	return nil
}

// remove deletes a row, and the blocked entry of which it is the head.
func (t *transport) remove(row outbox.ClaimedRow) {
	t.rows = slices.DeleteFunc(t.rows, func(r outbox.ClaimedRow) bool { return r.ID == row.ID })
	if b := t.blocked[keyOf(row)]; b != nil && b.head == row.ID {
		delete(t.blocked, keyOf(row))
	}
}

// Backlog implements outbox.Store.
func (db *DB) Backlog(_ context.Context, transport string) (outbox.Backlog, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	t := db.transport(transport)
	backlog := outbox.Backlog{Pending: len(t.rows)}
	for _, row := range t.rows {
		if b := t.blocked[keyOf(row)]; b != nil && (b.parked || b.until.After(time.Now())) {
			backlog.Blocked++
		}
	}
	for _, d := range db.delayed {
		if d.row.Queue == "" && d.row.Transport == transport {
			backlog.Delayed++
		}
	}
	return backlog, nil
}

// Failed returns the dead letters of a transport: messages that outbox.Skip took out
// of it. An empty name means DefaultTransport.
func (db *DB) Failed(transport string) []*waybill.Record {
	db.mu.Lock()
	defer db.mu.Unlock()
	var all []*waybill.Record
	for _, rec := range db.transport(cmp.Or(transport, outbox.DefaultTransport)).failed {
		all = append(all, clone(rec))
	}
	return all
}

// Pending returns the unpublished records of a transport: in commit order, and then
// the delayed ones, the earliest due first. An empty name means DefaultTransport.
func (db *DB) Pending(transport string) []*waybill.Record {
	transport = cmp.Or(transport, outbox.DefaultTransport)
	db.mu.Lock()
	defer db.mu.Unlock()
	db.moveDue(time.Now())
	var recs []*waybill.Record
	for _, row := range db.transport(transport).rows {
		recs = append(recs, clone(row.Record))
	}
	for _, d := range db.delayed {
		if d.row.Queue == "" && d.row.Transport == transport {
			recs = append(recs, clone(d.row.Record))
		}
	}
	return recs
}
