package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

// A release is a claim of parked rows, under the locks of their keys' buckets.
type release struct {
	holder
	lane      int16
	transport string
	rows      []outbox.ClaimedRow
	empty     []string // released keys of which nothing is parked
}

// ClaimReleasing implements outbox.FailureStore.
func (db *DB) ClaimReleasing(ctx context.Context, transport string, most outbox.Max) (outbox.Claim, error) {
	none := &release{}
	if err := db.writer(ctx); err != nil {
		return nil, err
	}
	id, err := db.relayed(ctx, transport)
	if err != nil || id == 0 {
		return none, err
	}
	buckets, err := query(ctx, db, db.failed.Query("releasing_buckets"), func(rows *sql.Rows, bucket *int16) error { return rows.Scan(bucket) }, id)
	if err != nil || len(buckets) == 0 {
		return none, err
	}
	pool, err := db.relayPool(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, translate(err)
	}
	c := &release{holder: holder{db: db, conn: conn}, lane: id, transport: transport}
	if err := c.claim(ctx, buckets, most); err != nil {
		c.end()
		return nil, translate(err)
	}
	switch {
	case len(c.rows) > 0:
		return c, nil
	case len(c.empty) > 0:
		return none, c.Settle(ctx, nil, nil) // they go on in the outbox
	}
	c.end()
	return none, nil
}

// claim locks buckets and then reads, as that of the outbox does.
func (c *release) claim(ctx context.Context, buckets []int16, most outbox.Max) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	for some := range slices.Chunk(buckets, lane.MaxBuckets) {
		locked, err := c.lockBuckets(ctx, c.lane, some)
		if err != nil {
			return err
		}
		if len(locked) > 0 { // the others are for other relays
			return c.read(ctx, locked, most)
		}
	}
	return nil
}

// A head is what is known of the last row of a key that was refused.
type head struct {
	message  waybill.MessageID
	failures int
}

// read reads the oldest parked rows of the released keys in locked buckets.
func (c *release) read(ctx context.Context, locked []int16, most outbox.Max) error {
	var now time.Time
	var keys []string
	heads := map[string]head{}
	err := c.query(ctx, c.db.failed.Query("releasing_keys"), func(rows *sql.Rows) error {
		var key string
		var h head
		err := rows.Scan(&key, id{&h.message}, &h.failures, moment{&now})
		keys, heads[key] = append(keys, key), h
		return err
	}, c.lane, join(locked), min(lane.MaxBuckets, most.Rows))
	if err != nil || len(keys) == 0 {
		return err
	}
	perKey := max(min(most.Rows, c.sizes(most.Bytes))/len(keys), 1)
	arms := make([]string, len(keys))
	var args []any
	for i, key := range keys {
		arms[i] = "(" + c.db.failed.Query("parked") + ")"
		args = append(args, stamp(now), c.lane, []byte(c.transport), []byte(key), perKey)
	}
	bytes := 0
	there := map[string]bool{}
	full := map[string]bool{} // keys of which a row was left out
	err = c.query(ctx, strings.Join(arms, " UNION ALL "), func(rows *sql.Rows) error {
		r, err := scanParked(rows)
		if err != nil {
			return err
		}
		rec := r.Claimed.Record
		c.measure(r)
		there[rec.Key] = true
		full[rec.Key] = full[rec.Key] || r.Held || bytes > 0 && bytes+size(r) > most.Bytes
		if full[rec.Key] {
			return nil
		}
		bytes += size(r)
		if h := heads[rec.Key]; h.message == rec.ID {
			r.Claimed.Failures = h.failures
		}
		rec.Problem = headers.Decode(rec, r.Headers)
		c.rows = append(c.rows, r.Claimed)
		return nil
	}, args...)
	if err != nil {
		return err
	}
	c.empty = slices.DeleteFunc(keys, func(key string) bool { return there[key] })
	return c.flush(ctx, len(c.rows))
}

// scanParked reads a row of parked.
func scanParked(rows *sql.Rows) (lane.Row, error) {
	rec := &waybill.Record{}
	r := lane.Row{Claimed: outbox.ClaimedRow{Record: rec}}
	var number int64
	err := rows.Scan(&rec.Key, &number, id{&rec.ID}, &rec.Name, &r.Headers, &rec.Body, moment{&rec.DispatchedAt}, &r.Claimed.RouteFailures, &r.Held)
	r.Claimed.ID = -number
	return r, err
}

// Rows implements outbox.Claim.
func (c *release) Rows() []outbox.ClaimedRow { return c.rows }

// Settle implements outbox.Claim. A key whose last row was published goes on in
// the outbox.
func (c *release) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if c.conn == nil {
		return nil
	}
	defer c.end()
	var ids []int64
	var routes []string
	keys := c.empty
	for _, row := range published {
		ids = append(ids, -row.ID)
		if !slices.Contains(keys, row.Record.Key) {
			keys = append(keys, row.Record.Key)
		}
		if name := row.Record.Name; row.RouteFailures > 0 && !slices.Contains(routes, name) {
			routes = append(routes, name)
		}
	}
	statements := []statement{c.bump(c.lane)} // first, as in every other settle
	if len(ids) > 0 {
		statements = append(statements, statement{text: c.db.failed.Query("delete_failed"), args: []any{jsonIDs(ids)}})
	}
	statements = append(statements, c.unblockRoutes(c.lane, routes)...)
	for _, f := range failed {
		statements = append(statements, c.failure(f)...)
	}
	for _, key := range keys {
		statements = append(statements, statement{text: c.db.failed.Query("end_release"), args: []any{c.lane, []byte(key), []byte(c.transport), []byte(key)}})
	}
	if err := c.exec(ctx, statements...); err != nil {
		return translate(err)
	}
	return translate(c.commit(ctx))
}

// failure returns what records that a parked row was refused.
func (c *release) failure(f outbox.Failure) []statement {
	if f.Route {
		return []statement{c.blocking(c.lane, f, "", 0, lane.Route)}
	}
	again := f.RetryIn
	if f.Exhausted {
		again = 0 // what follows a skipped one does not wait for it
	}
	rec, store := f.Row.Record, c.db.failed
	key := []byte(rec.Key)
	all := []statement{{text: store.Query("retry_release"), args: []any{rec.ID[:], rec.ID[:], []byte(rec.Name), string(f.Policy), clip(f.Err.Error(), maxError), again.Microseconds(), c.lane, key}}}
	switch {
	case f.Parks():
		all = append(all, statement{text: store.Query("failed_again"), args: []any{c.lane, "parked", -f.Row.ID}}, statement{text: store.Query("park"), args: []any{c.lane, key}})
	case f.Exhausted:
		all = append(all, statement{text: store.Query("failed_again"), args: []any{c.lane, "skipped", -f.Row.ID}})
	}
	return all
}

// Failed implements admin.Database.
func (db *DB) Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error) {
	return query(ctx, db, db.failed.Query("list"), func(rows *sql.Rows, m *admin.FailedMessage) error {
		return rows.Scan(&m.Number, &m.State, &m.Transport, &m.Name, &m.Key, id{&m.ID}, moment{&m.CreatedAt}, &m.Failures, maybe{&m.FirstFailedAt}, moment{&m.FailedAt}, &m.LastError, maybe{&m.RemovedAt}, &m.Bytes)
	}, append(twice(q.State, q.Transport, q.Key, q.Name, join(q.Numbers)), q.After, limit(q.Limit))...)
}

// FailedContent implements admin.Database.
func (db *DB) FailedContent(ctx context.Context, number int64) (c admin.FailedContent, err error) {
	if err := db.ready(ctx); err != nil {
		return c, err
	}
	err = db.pool.QueryRowContext(ctx, db.failed.Query("content"), number).Scan((*[]byte)(&c.Headers), &c.Body)
	if errors.Is(err, sql.ErrNoRows) {
		return c, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound)
	}
	return c, translate(err)
}

// RetryFailed implements admin.Database.
func (db *DB) RetryFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	if err := db.writer(ctx); err != nil {
		return 0, err
	}
	if _, err := db.readLanes(ctx); err != nil { // an operator's process has dispatched to none
		return 0, err
	}
	err = db.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, number := range slices.Sorted(slices.Values(numbers)) { // two operators lock in one order
			row, err := db.takeSkipped(ctx, tx, number)
			if errors.Is(err, sql.ErrNoRows) {
				continue // somebody else was quicker
			}
			if err == nil {
				err = db.Write(ctx, tx, row)
			}
			if err != nil {
				return fmt.Errorf("failed message %d: %w", number, err)
			}
			n++
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("retry: %w", translate(err))
	}
	return n, nil
}

// takeSkipped removes a skipped message from the failure store.
func (db *DB) takeSkipped(ctx context.Context, tx *sql.Tx, number int64) (row outbox.Row, err error) {
	rec := &waybill.Record{}
	var meta string
	if err := tx.QueryRowContext(ctx, db.failed.Query("skipped"), number).Scan(&row.Transport, id{&rec.ID}, &rec.Name, &rec.Key, &meta, &rec.Body, moment{&rec.DispatchedAt}); err != nil {
		return row, err
	}
	if err := headers.Decode(rec, meta); err != nil {
		return row, err
	}
	row.Record = rec
	_, err = tx.ExecContext(ctx, db.failed.Query("delete_skipped"), number)
	return row, err
}

// RemoveFailed implements admin.Database.
func (db *DB) RemoveFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	if err := db.writer(ctx); err != nil {
		return 0, err
	}
	err = db.inTx(ctx, func(tx *sql.Tx) error {
		// First: no key is released meanwhile, so that no relay has what is removed.
		if _, err := tx.ExecContext(ctx, db.admin.Query("release_bump"), twice("")...); err != nil {
			return err
		}
		done, err := tx.ExecContext(ctx, db.failed.Query("remove"), jsonIDs(numbers))
		if err != nil {
			return err
		}
		removed, err := done.RowsAffected()
		n = int(removed)
		return err
	})
	return n, translate(err)
}
