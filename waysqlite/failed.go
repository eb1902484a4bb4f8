package waysqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// A release is a claim of parked rows. It holds the lane as one of the outbox does.
type release struct {
	db        *DB // nil when there is nothing to settle
	lane      int64
	transport string
	rows      []outbox.ClaimedRow
	empty     []string // released keys of which nothing is parked
}

// ClaimReleasing implements outbox.FailureStore.
func (db *DB) ClaimReleasing(ctx context.Context, transport string, max outbox.Max) (outbox.Claim, error) {
	none := &release{}
	if err := db.checkSchema(ctx); err != nil {
		return nil, err
	}
	c := &release{db: db, transport: transport}
	err := db.reader.QueryRowContext(ctx, db.failedSQL.Query("any_releasing"), transport).Scan(&c.lane)
	if errors.Is(err, sql.ErrNoRows) {
		return none, nil
	}
	if err != nil {
		return nil, translate(err)
	}
	if !db.hold(c.lane) {
		return none, nil // another worker of this process has it
	}
	// What the last holder has published is gone from what is read after hold.
	if err := c.read(ctx, max); err != nil {
		db.letGo(c.lane)
		return nil, err
	}
	if len(c.rows) > 0 {
		return c, nil
	}
	return none, c.Settle(ctx, nil, nil) // keys of which nothing is parked go on in the outbox
}

// A releasedKey is one that is due.
type releasedKey struct {
	name     string
	head     waybill.MessageID // which was refused last, that often
	failures int
}

// read fills c. An operator leaves alone what is parked of the keys that it finds.
func (c *release) read(ctx context.Context, max outbox.Max) error {
	keys, err := c.keys(ctx, max.Rows)
	size := 0
	for i := 0; err == nil && i < len(keys) && len(c.rows) < max.Rows && size < max.Bytes; i++ {
		err = c.readKey(ctx, keys[i], max, &size)
	}
	return err
}

func (c *release) keys(ctx context.Context, max int) (keys []releasedKey, err error) {
	rows, err := c.db.reader.QueryContext(ctx, c.db.failedSQL.Query("releasing"), c.lane, max)
	if err != nil {
		return nil, translate(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var k releasedKey
		if err := rows.Scan(&k.name, &k.head, &k.failures); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, translate(rows.Err())
}

// readKey adds what is parked of a key, up to max of all; size is the bytes so far.
func (c *release) readKey(ctx context.Context, k releasedKey, max outbox.Max, size *int) error {
	rows, err := c.db.reader.QueryContext(ctx, c.db.failedSQL.Query("claim_releasing"), c.transport, k.name, max.Rows-len(c.rows))
	if err != nil {
		return translate(err)
	}
	defer func() { _ = rows.Close() }()
	found := false
	for rows.Next() {
		row := outbox.ClaimedRow{Record: &waybill.Record{Key: k.name}}
		rec := row.Record
		var id, created int64
		var meta string
		if err := rows.Scan(&id, &rec.ID, &rec.Name, &meta, &rec.Body, &created); err != nil {
			return err
		}
		found = true
		if *size += len(rec.Body) + len(meta); *size > max.Bytes && len(c.rows) > 0 {
			break
		}
		row.ID, rec.DispatchedAt = -id, micros(created)
		if rec.ID == k.head {
			row.Failures = k.failures
		}
		rec.Problem = headers.Decode(rec, meta)
		c.rows = append(c.rows, row)
	}
	if !found && rows.Err() == nil {
		c.empty = append(c.empty, k.name)
	}
	return translate(rows.Err())
}

// Rows implements outbox.Claim.
func (c *release) Rows() []outbox.ClaimedRow { return c.rows }

// Settle implements outbox.Claim. A key whose last row was published goes on in
// the outbox.
func (c *release) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if c.db == nil {
		return nil
	}
	defer c.db.letGo(c.lane)
	ids, keys := make([]int64, len(published)), c.empty
	for i, row := range published {
		ids[i], keys = -row.ID, append(keys, row.Record.Key)
	}
	for _, f := range failed {
		keys = append(keys, f.Row.Record.Key) // it may be skipped
	}
	if len(keys) == 0 {
		return nil
	}
	return c.db.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, c.db.outboxSQL.Query("bump_blocked"), c.lane); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, c.db.failedSQL.Query("delete_failed"), list(ids)); err != nil {
			return err
		}
		for _, f := range failed {
			if err := c.refused(ctx, tx, f); err != nil {
				return err
			}
		}
		for _, key := range keys {
			if _, err := tx.ExecContext(ctx, c.db.failedSQL.Query("end_release"), c.lane, c.transport, key); err != nil {
				return err
			}
		}
		return nil
	})
}

// refused records that a parked row was refused.
func (c *release) refused(ctx context.Context, tx *sql.Tx, f outbox.Failure) error {
	rec, again := f.Row.Record, f.RetryIn
	if f.Exhausted {
		again = 0 // what follows a skipped one does not wait for it
	}
	_, err := tx.ExecContext(ctx, c.db.failedSQL.Query("retry_release"), c.lane, rec.Key, rec.ID[:], rec.Name, string(f.Policy), clip(f.Err.Error(), maxError), again.Microseconds())
	if err != nil || !f.Exhausted {
		return err
	}
	state := admin.Skipped
	if f.Parks() {
		state = admin.Parked
	}
	if _, err := tx.ExecContext(ctx, c.db.failedSQL.Query("failed_again"), -f.Row.ID, state, c.lane); err != nil || !f.Parks() {
		return err
	}
	_, err = tx.ExecContext(ctx, c.db.failedSQL.Query("park"), c.lane, rec.Key)
	return err
}

// list is ids for json_each, and null for nil.
func list(ids []int64) string {
	text, _ := json.Marshal(ids) // numbers always can be
	return string(text)
}

// Failed implements admin.Database.
func (db *DB) Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error) {
	return query(ctx, db, db.failedSQL.Query("list"), func(rows *sql.Rows, m *admin.FailedMessage) error {
		var created, at int64
		var first, removed sql.NullInt64
		err := rows.Scan(&m.Number, &m.State, &m.Transport, &m.Name, &m.Key, &m.ID, &created, &m.Failures, &first, &at, &m.LastError, &removed, &m.Bytes)
		m.CreatedAt, m.FirstFailedAt, m.FailedAt, m.RemovedAt = micros(created), microsOrNil(first), micros(at), microsOrNil(removed)
		return err
	}, q.State, q.Transport, q.Key, q.Name, list(q.Numbers), q.After, cmp.Or(q.Limit, -1))
}

// FailedContent implements admin.Database. Headers of another program's that are
// no JSON are one string of it.
func (db *DB) FailedContent(ctx context.Context, number int64) (c admin.FailedContent, err error) {
	if err := db.checkSchema(ctx); err != nil {
		return c, err
	}
	var meta string
	err = db.reader.QueryRowContext(ctx, db.failedSQL.Query("content"), number).Scan(&meta, &c.Body)
	if errors.Is(err, sql.ErrNoRows) {
		return c, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound)
	}
	c.Headers = json.RawMessage(meta)
	if !json.Valid(c.Headers) {
		c.Headers, _ = json.Marshal(meta)
	}
	return c, translate(err)
}

// RetryFailed implements admin.Database.
func (db *DB) RetryFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	if err := db.AddTransports(ctx); err != nil { // none: it reads which there are
		return 0, err
	}
	err = db.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, number := range numbers {
			rec := &waybill.Record{}
			var transport, meta string
			var created int64
			err := tx.QueryRowContext(ctx, db.failedSQL.Query("take"), number).Scan(&transport, &rec.ID, &rec.Name, &rec.Key, &meta, &rec.Body, &created)
			if errors.Is(err, sql.ErrNoRows) {
				continue // somebody else was quicker
			}
			if err == nil {
				rec.DispatchedAt = micros(created)
				err = headers.Decode(rec, meta)
			}
			if err == nil {
				err = db.Write(ctx, tx, outbox.Row{Record: rec, Transport: transport})
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

// RemoveFailed implements admin.Database. No key is released while it writes.
func (db *DB) RemoveFailed(ctx context.Context, numbers ...int64) (n int, err error) {
	if err := db.checkSchema(ctx); err != nil {
		return 0, err
	}
	err = db.write(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, db.failedSQL.Query("remove"), list(numbers))
		if err != nil {
			return err
		}
		removed, err := result.RowsAffected()
		n = int(removed)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("remove: %w", err)
	}
	return n, nil
}
