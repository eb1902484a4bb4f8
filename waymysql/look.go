package waymysql

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

// discover returns the buckets that have rows behind their mark or cursor,
// beginning with the one whose turn it is, and sets news. Those of unserialized
// rows have neither mark nor cursor; idle ones are left out. Again says that what
// was remembered is of an earlier time.
func (c *claim) discover(ctx context.Context, idle []int16) (full []int16, again bool, err error) {
	cursors, marks, until := c.View.After()
	after := marks
	if held := c.View.Version(); held != 0 {
		var version, now int64
		if err := c.conn.QueryRowContext(ctx, c.db.outbox.Query("now"), c.Lane.ID).Scan(&version, &now); err != nil {
			return nil, false, err
		}
		if version == held {
			after = cursors
			for b := range after {
				if !at(now).Before(until[b]) {
					after[b] = marks[b]
				}
			}
		}
	}
	known := c.served.horizon.load()
	f := found{at: time.Now(), first: map[int16]int64{}}
	if f.survey, f.starts = known.due(f.at); f.survey {
		if f.free, err = c.freeGates(ctx); err != nil {
			return nil, false, err
		}
	}
	if err := c.look(ctx, known, marks, after, &f); err != nil || f.paused {
		return nil, false, err
	}
	if f.server != "" && f.buckets != len(marks) {
		c.db.setBuckets(f.buckets)
		return nil, true, nil
	}
	// An id that was seen is to be given again: the table was truncated, or restored.
	if f.next > 0 && f.next <= max(known.at, known.next-1, slices.Max(marks)) {
		c.served.Forget()
		return nil, true, nil
	}
	if f.server != "" && !c.Lane.Serves(c.View, f.server) {
		c.served.horizon.forget()
		return nil, true, nil
	}
	c.served.horizon.learn(known, known.with(f, len(marks)))
	c.news = map[int16]news{}
	for _, n := range f.news {
		if n.bucket == lane.Unkeyed || lane.Unserialized(n.bucket) || n.id > after[n.bucket] { // or it waits
			of := c.news[n.bucket]
			c.news[n.bucket] = news{append(of.ids, n.id), f.read == maxNews}
		}
	}
	for i := range after {
		bucket := int16((i + c.View.Turn) % len(after))
		free := bucket + outbox.Unserialized
		_, isNew := c.news[free]
		delete(c.news, free) // it is read from its start, and beside them may be what was committed late
		anyFree := (isNew || f.first[free] > 0) && !slices.Contains(idle, free)
		if anyFree && c.View.Flip {
			full = append(full, free)
		}
		_, isNew = c.news[bucket]
		if isNew || f.first[bucket] > after[bucket] {
			full = append(full, bucket)
		}
		if anyFree && !c.View.Flip {
			full = append(full, free)
		}
		if cursors[bucket] != marks[bucket] {
			delete(c.news, bucket) // beside them there is what waits
		}
	}
	if first, ok := f.first[lane.Unkeyed]; ok && (len(c.news[lane.Unkeyed].ids) == 0 || first < c.news[lane.Unkeyed].ids[0]) {
		c.news[lane.Unkeyed] = news{[]int64{first}, true}
	}
	return full, false, nil
}

// news is what is new in a bucket.
type news struct {
	ids  []int64 // at least one
	more bool    // there may be others
}

// where is the condition of what is new to a bucket without an order.
func (n news) where() string {
	if n.more {
		return fmt.Sprint("e.id >= ", n.ids[0])
	}
	return "e.id IN (" + join(n.ids) + ")"
}

// look asks who answers, what is new to all buckets, and what there is in those
// that are open. What is new is read by the key on id. A range of the primary key
// in which nothing is left goes on through all that the server has not purged of
// the buckets behind it: it asks whether a range is at its end only at rows that
// are there.
func (c *claim) look(ctx context.Context, known *sight, marks, after []int64, f *found) error {
	tables := qualified(c.db.schema, c.db.prefix)
	var b strings.Builder
	fmt.Fprintf(&b, "(%s)", c.db.outbox.Query("table"))
	fmt.Fprintf(&b, " UNION ALL (SELECT 'paused', 0, NULL, NULL FROM %smeta WHERE name = 'relays_paused_until' AND CAST(value AS DATETIME(6)) > UTC_TIMESTAMP(6))", tables)
	others := ""
	if len(known.open) > 0 {
		others = " AND bucket NOT IN (" + join(slices.Sorted(maps.Keys(known.open))) + ")"
	}
	fmt.Fprintf(&b, " UNION ALL (SELECT 'new', bucket, id, NULL FROM %soutbox FORCE INDEX (id) WHERE lane = %d AND id > %d%s ORDER BY id LIMIT %d)", tables, c.Lane.ID, known.at, others, maxNews)
	of := func(arm string, bucket int16, rest string) {
		fmt.Fprintf(&b, " UNION ALL (SELECT '%s', %d, id, NULL FROM %soutbox FORCE INDEX (PRIMARY) WHERE lane = %d AND bucket = %[2]d%[5]s LIMIT 1)", arm, bucket, tables, c.Lane.ID, rest)
	}
	for bucket := range known.open {
		switch {
		case bucket == lane.Unkeyed:
		case lane.Unserialized(bucket):
			of("open", bucket, " ORDER BY id")
		case after[bucket] == marks[bucket] && c.served.backlog.has(bucket):
			f.first[bucket] = marks[bucket] + 1
		case after[bucket] == marks[bucket]:
			of("open", bucket, fmt.Sprintf(" AND id > %d ORDER BY id", marks[bucket]))
		default: // to its last row, because what waits is there and may be all
			of("open", bucket, fmt.Sprintf(" AND id > %d ORDER BY id DESC", marks[bucket]))
		}
	}
	if f.starts {
		of("start", known.turn, " ORDER BY id")
	}
	if f.starts && c.free {
		fmt.Fprintf(&b, " UNION ALL (SELECT 'open', b.bucket + %[1]d, (SELECT id FROM %[2]soutbox FORCE INDEX (PRIMARY) WHERE lane = %[3]d AND bucket = b.bucket + %[1]d ORDER BY id LIMIT 1), NULL FROM %[2]soutbox_bucket AS b WHERE b.lane = %[3]d)",
			outbox.Unserialized, tables, c.Lane.ID)
	}
	if f.starts || known.open[lane.Unkeyed] {
		of("open", lane.Unkeyed, " ORDER BY id")
	}
	return c.query(ctx, b.String(), func(rows *sql.Rows) error {
		var arm string
		var bucket int16
		var id sql.NullInt64
		var who sql.NullString
		if err := rows.Scan(&arm, &bucket, &id, &who); err != nil {
			return err
		}
		switch arm {
		case "table":
			f.buckets, f.next, f.server = int(bucket), id.Int64, who.String
		case "paused":
			f.paused = true
		case "new":
			if bucket >= lane.Unkeyed && int(bucket) < len(after) || c.free && lane.Unserialized(bucket) && int(bucket)-outbox.Unserialized < len(after) { // nobody's, otherwise
				f.news = append(f.news, place{bucket, id.Int64})
			}
			f.read, f.last = f.read+1, id.Int64
		case "open":
			if id.Valid {
				f.first[bucket] = id.Int64
			}
		case "start":
			f.start = id.Int64
		}
		return nil
	}, c.db.schema, c.db.prefix+"outbox")
}

// freeGates returns the buckets that nobody is dispatching to.
func (c *claim) freeGates(ctx context.Context) (free []int16, err error) {
	err = c.query(ctx, c.db.outbox.Query("free_gates"), func(rows *sql.Rows) error {
		var bucket int16
		err := rows.Scan(&bucket)
		free = append(free, bucket)
		return err
	}, c.Lane.ID)
	return free, err
}
