package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/outbox"
)

// A rowSize is the usual size of a table's rows in bytes. The zero value is a guess.
type rowSize struct{ bytes atomic.Int64 }

// firstSize is the usual size before any row was seen.
const firstSize = 4 << 10

// rowsIn returns how many rows of the usual size are in maxBytes: so many are asked
// for, because the server cannot stop by bytes without reading the rows that it leaves
// out.
func (s *rowSize) rowsIn(maxBytes int) int {
	return max(maxBytes/int(cmp.Or(s.bytes.Load(), firstSize)), 1)
}

// learn takes a row into account: a larger one at once, a smaller one slowly.
func (s *rowSize) learn(size int) {
	n, old := int64(size), cmp.Or(s.bytes.Load(), firstSize)
	if n < old {
		n = old - (old-n)/64
	}
	s.bytes.Store(max(n, 1))
}

// rowRef names a row by bucket and id.
type rowRef struct {
	bucket int16
	id     int64
}

// read runs a statement that reads rows. It returns each bucket's rows up to the first
// beyond the limit of bytes: the rest is left for another claim.
func (c *claim) read(ctx context.Context, s clause, limit outbox.ClaimLimit) (found []readpos.Row, err error) {
	bytes := 0
	full := map[int16]bool{}
	large := map[rowRef]*waybill.Record{} // whose bodies are still to be read
	err = c.query(ctx, s, func(rows *sql.Rows) error {
		r, size, err := scanRow(rows)
		if err != nil || r.None {
			found = append(found, r)
			return err
		}
		// Rows follow: the bucket's last id is not needed.
		if n := len(found) - 1; n >= 0 && found[n].None && found[n].Bucket == r.Bucket {
			found = found[:n]
		}
		rec := r.Claimed.Record
		if r.Held = c.routes[rec.Name]; !r.Held {
			c.db.usual.learn(size)
			full[r.Bucket] = full[r.Bucket] || bytes > 0 && bytes+size > limit.Bytes
		}
		if full[r.Bucket] {
			return nil
		}
		if !r.Held {
			bytes += size
			if rec.Body == nil {
				large[rowRef{r.Bucket, r.Claimed.ID}] = rec
			}
		}
		found = append(found, r)
		return nil
	})
	if err == nil && len(large) > 0 {
		err = c.bodies(ctx, large)
	}
	return found, err
}

// body is the condition for the body of one of so many rows. Rows of a waiting route
// come without, and rows larger than their share of the limit: see bodies.
func (c *claim) body(rows int, limit outbox.ClaimLimit) clause {
	of := []clause{c.fill("small_body", max(limit.Bytes/rows, 1))}
	if len(c.routes) > maxNames {
		of = append(of, c.fill("not_of_blocked_route"))
	} else if len(c.routes) > 0 {
		of = append(of, c.fill("not_of_routes", literals(slices.Collect(maps.Keys(c.routes))...)))
	}
	return and(of)
}

// bodies reads bodies larger than their share, now that they are known to fit the limit.
func (c *claim) bodies(ctx context.Context, large map[rowRef]*waybill.Record) error {
	var branches []clause
	for at := range large {
		if at.bucket == unkeyed {
			branches = append(branches, c.fill("unkeyed_body", c.on.Transport, at.id))
		} else {
			branches = append(branches, c.fill("keyed_body", c.on.Transport, at.bucket, at.id))
		}
	}
	err := c.query(ctx, unionAll(branches), func(rows *sql.Rows) error {
		var at rowRef
		var body []byte
		err := rows.Scan(&at.bucket, &at.id, &body)
		if rec := large[at]; rec != nil {
			rec.Body = body
			delete(large, at)
		}
		return err
	})
	for at := range large {
		if err == nil {
			err = fmt.Errorf("row %d was removed while it was claimed", at.id)
		}
	}
	return err
}

// scanRow reads a row of columns, or the last id of a bucket.
func scanRow(rows *sql.Rows) (r readpos.Row, size int, err error) {
	rec := &waybill.Record{}
	r.Claimed = outbox.ClaimedRow{Record: rec}
	var last, id, length, created sql.NullInt64
	var message []byte
	var name, key, meta sql.NullString
	if err := rows.Scan(&r.Bucket, &last, &id, &message, &name, &key, &meta, &length, &rec.Body, &created); err != nil {
		return r, 0, err
	}
	if r.None = !id.Valid; r.None {
		if last.Valid {
			r.Last = &last.Int64
		}
		return r, 0, nil
	}
	if len(message) != len(rec.ID) {
		return r, 0, fmt.Errorf("row %d of the outbox has a message_id of %d bytes, want 16", id.Int64, len(message))
	}
	r.Claimed.ID, rec.ID, rec.Name, rec.Key, r.Headers, rec.DispatchedAt = id.Int64, [16]byte(message), name.String, key.String, meta.String, at(created.Int64)
	return r, int(length.Int64) + len(r.Headers), nil
}
