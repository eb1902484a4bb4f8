package waymysql

import (
	"context"
	"database/sql"
	"maps"
	"math"
	"slices"

	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// Settle implements outbox.Claim: it deletes, records failures and commits.
// Positions move after it, and not before.
func (c *claim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if c.conn == nil {
		return nil
	}
	defer c.end()
	published = slices.DeleteFunc(slices.Clone(published), func(r outbox.ClaimedRow) bool { _, ours := c.at[r.Record]; return !ours })
	failed = slices.DeleteFunc(slices.Clone(failed), func(f outbox.Failure) bool { _, ours := c.at[f.Row.Record]; return !ours })
	for i := range failed {
		failed[i].Exhausted = failed[i].Exhausted && !failed[i].Route // a route is neither parked nor skipped
	}
	if err := c.settle(ctx, published, failed); err != nil {
		c.on.reset()
		return translate(err)
	}
	c.settled(published, failed)
	return nil
}

// settled moves the positions.
func (c *claim) settled(published []outbox.ClaimedRow, failed []outbox.Failure) {
	switch {
	case c.part == outbox.Keyed:
		c.batch.Settled(published)
	case len(published)+len(failed) < len(c.rows):
		c.on.Unkeyed.Again()
		c.on.unkeyed.restart()
	}
}

func (c *claim) settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	var gone []claimedRef
	for _, row := range published {
		gone = append(gone, c.at[row.Record])
	}
	if err := c.delete(ctx, gone...); err != nil {
		return err
	}
	if err := c.bump(ctx, gone, failed); err != nil {
		return err
	}
	for _, at := range gone {
		if err := c.unblock(ctx, at); err != nil {
			return err
		}
	}
	for _, f := range failed {
		if err := c.fail(ctx, f, c.at[f.Row.Record]); err != nil {
			return err
		}
	}
	if err := c.db.run(ctx, c.conn, script{statements: c.refused}); err != nil {
		return err
	}
	return c.commit(ctx)
}

// bump locks the buckets whose blocked keys change, in ascending order, then the
// routes' version. A claim of retries does not wait for a bucket that another relay
// publishes, unless a key is to be parked.
func (c *claim) bump(ctx context.Context, published []claimedRef, failed []outbox.Failure) error {
	buckets, parks, routes := map[int16]bool{}, map[int16]bool{}, false
	c.bumped = map[int16]bool{}
	for _, at := range published {
		switch {
		case at.entry == nil:
		case at.entry.route != "":
			routes = true
		case at.bucket != unkeyed:
			buckets[at.bucket] = true
		}
	}
	for _, f := range failed {
		at := c.at[f.Row.Record]
		again := at.entry != nil && !f.Exhausted && (!f.Route || at.entry.route != "") // only its times change
		routes = routes || f.Route && !again
		if at.bucket != unkeyed && !again && !(f.Route && at.entry == nil) {
			buckets[at.bucket] = true
		}
	}
	if c.part == outbox.Retries {
		for _, f := range failed {
			if f.Parks() {
				parks[c.at[f.Row.Record].bucket] = true
			}
		}
	}
	for _, bucket := range slices.Sorted(maps.Keys(buckets)) {
		if c.part == outbox.Retries && !parks[bucket] {
			locked, err := c.lock(ctx, []int16{bucket}, 1)
			if err != nil {
				return err
			}
			if len(locked) == 0 {
				continue
			}
		}
		if err := c.do(ctx, "bump", c.on.Transport, bucket); err != nil {
			return err
		}
		c.bumped[bucket] = true
	}
	if routes {
		return c.do(ctx, "bump", c.on.Transport, unkeyed)
	}
	return nil
}

// unblock removes the entry of a row that is deleted, if it has one. While another relay
// publishes other keys of the bucket, the entry stays: the next claim of retries removes
// it as an entry without a row.
func (c *claim) unblock(ctx context.Context, at claimedRef) error {
	switch {
	case at.entry == nil:
		return nil
	case at.entry.key != "" && !c.bumped[at.bucket]:
		_, err := c.conn.ExecContext(ctx, c.db.admin.Query("retry_now"), at.entry.id()...)
		return err
	}
	return c.do(ctx, "unblock", at.entry.id()...)
}

// delete removes rows.
func (c *claim) delete(ctx context.Context, rows ...claimedRef) error {
	var keyed, others [][2]int64
	for _, at := range rows {
		if at.bucket == unkeyed {
			others = append(others, [2]int64{int64(at.held), at.id})
		} else {
			keyed = append(keyed, [2]int64{int64(at.bucket), at.id})
		}
	}
	if len(keyed) > 0 {
		if err := c.do(ctx, "delete", jsonOf(keyed), c.on.Transport); err != nil {
			return err
		}
	}
	if len(others) > 0 {
		return c.do(ctx, "delete_unkeyed", jsonOf(others), c.on.Transport)
	}
	return nil
}

// fail records a failure, and follows its policy.
func (c *claim) fail(ctx context.Context, f outbox.Failure, at claimedRef) error {
	counted := 1
	if f.Suspect {
		counted = 0
	}
	state, again, problem := "retrying", c.db.retryAfter(f.RetryIn), sqlcore.Clip(f.Err.Error())
	if f.Parks() {
		state = "parked"
	}
	route := at.entry != nil && at.entry.route != ""
	switch {
	case f.Route && !route:
		if err := c.blockRoute(ctx, f, at); err != nil {
			return err
		}
	case f.Skips() && !route:
		return c.skip(ctx, at, counted, problem)
	case at.entry != nil:
		c.refused = append(c.refused, statement{text: c.db.outbox.Query("block_again"), args: append([]any{counted, again, problem, state, string(f.Policy)}, at.entry.id()...), bytes: len(problem) + len(at.entry.key) + len(at.entry.route)})
	default:
		if err := c.block(ctx, f, at, "", f.Row.Record.Key, counted, state); err != nil {
			return err
		}
	}
	switch {
	case f.Parks():
		return c.park(ctx, at, f.Row.Record.Key)
	case at.bucket == unkeyed && at.held == 0:
		return c.do(ctx, "hold", jsonIDs([]int64{at.id}), c.on.Transport, 0, 1)
	}
	return nil
}

// block makes an entry.
func (c *claim) block(ctx context.Context, f outbox.Failure, at claimedRef, route, key string, failures int, state string) error {
	rec := f.Row.Record
	return c.do(ctx, "block", c.on.Transport, []byte(route), []byte(key), at.id, at.bucket, hexID(rec.ID), []byte(rec.Name), failures,
		c.db.retryAfter(f.RetryIn), sqlcore.Clip(f.Err.Error()), state, string(f.Policy))
}

// blockRoute makes the entry of a route, unless it has one: the lock of the routes'
// version makes that certain. The row's own entry is not needed any more, because the
// row waits for the route.
func (c *claim) blockRoute(ctx context.Context, f outbox.Failure, at claimedRef) error {
	if err := c.unblock(ctx, at); err != nil {
		return err
	}
	var blocked bool
	err := c.conn.QueryRowContext(ctx, c.db.outbox.Query("route_is_blocked"), c.on.Transport, []byte(f.Row.Record.Name)).Scan(&blocked)
	if err != nil || blocked {
		return err
	}
	if err := c.block(ctx, f, at, f.Row.Record.Name, "", 1, "retrying"); err != nil {
		return err
	}
	var of []entry // messages without a key that were refused before it was known to be the route
	if err := c.query(ctx, fill(c.db.outbox.Query("unkeyed_of_route"), c.on.Transport, []byte(f.Row.Record.Name)), func(rows *sql.Rows) error {
		e := entry{transport: c.on.Transport}
		err := rows.Scan(&e.row)
		of = append(of, e)
		return err
	}); err != nil {
		return err
	}
	for _, e := range of {
		if err := c.do(ctx, "unblock", e.id()...); err != nil {
			return err
		}
	}
	return nil
}

// skip moves a row to the dead letters.
func (c *claim) skip(ctx context.Context, at claimedRef, counted int, problem string) error {
	query, where := "skip", any(at.bucket)
	if at.bucket == unkeyed {
		query, where = "skip_unkeyed", at.held
	}
	if at.entry != nil {
		counted += at.entry.failures
	}
	if err := c.do(ctx, query, counted, problem, c.on.Transport, where, at.id); err != nil {
		return err
	}
	if err := c.unblock(ctx, at); err != nil {
		return err
	}
	return c.delete(ctx, at)
}

// park sets the rows of a key aside.
func (c *claim) park(ctx context.Context, at claimedRef, key string) error {
	ids, _, err := c.db.rowsOfKey(ctx, c.conn, c.on.Transport, at.bucket, at.id-1, key, math.MaxInt32)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(ids, releaseBatch) {
		if err := c.do(ctx, "move_rows", jsonIDs(batch), c.on.Transport, at.bucket, at.bucket+outbox.ParkedBuckets); err != nil {
			return err
		}
	}
	return nil
}
