package waymysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/outbox"
)

// Settle implements outbox.Claim: it deletes, records failures and commits.
// Marks move after it, and not before.
func (c *claim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if c.conn == nil {
		return nil
	}
	defer c.end()
	left := c.Left()
	if err := c.settle(ctx, published, failed, left); err != nil {
		c.served.Forget()
		return translate(err)
	}
	c.Settled(left)
	return nil
}

// settle takes what is deleted out of left.
func (c *claim) settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure, left map[int64]int) error {
	statements := c.deletes(published, failed, left)
	failed = slices.DeleteFunc(slices.Clone(failed), func(f outbox.Failure) bool { _, ours := left[f.Row.ID]; return !ours })
	if len(failed) > 0 || slices.ContainsFunc(statements, func(s statement) bool { return s.blocks }) {
		// First: its row lock makes those take turns who change what is blocked,
		// because a route is not one bucket's.
		statements = slices.Insert(statements, 0, c.bump(c.Lane.ID))
	}
	if mutant.Active(mutant.MarkBeforeCommit) {
		c.Settled(left)
	}
	if err := c.exec(ctx, statements...); err != nil {
		return err
	}
	for _, f := range failed {
		if err := c.block(ctx, f, c.Origin(left[f.Row.ID]).Bucket); err != nil {
			return err
		}
	}
	return c.commit(ctx)
}

// deletes returns what removes the published rows and unblocks their keys and
// routes, but for keys whose head has failed in front of them, and takes the rows
// out of left.
func (c *claim) deletes(published []outbox.ClaimedRow, failed []outbox.Failure, left map[int64]int) []statement {
	if len(published) == 0 {
		return nil
	}
	stays := map[string]bool{}
	for _, f := range failed {
		stays[f.Row.Record.Key] = f.Row.Record.Key != ""
	}
	tables := qualified(c.db.schema, c.db.prefix)
	var rows []string
	var routes, keys []string
	var unblock statement
	_, anyUnkeyed := c.State.Next[lane.Unkeyed]
	for _, row := range published {
		from := c.Origin(left[row.ID])
		delete(left, row.ID)
		rows = append(rows, fmt.Sprintf("[%d,%d]", from.Bucket, row.ID))
		// A row without key may have been refused elsewhere in the moment before it
		// was claimed here.
		if from.KeyBlocked && !stays[row.Record.Key] || from.Bucket == lane.Unkeyed && anyUnkeyed {
			keys = append(keys, "(partition_key = ? AND row_id = ?)")
			unblock.args = append(unblock.args, []byte(row.Record.Key), lane.BlockedRow(row))
		}
		if name := row.Record.Name; row.RouteFailures > 0 && !slices.Contains(routes, name) {
			routes = append(routes, name)
		}
	}
	all := []statement{c.delete(rows)}
	if len(keys) > 0 {
		unblock.text = fmt.Sprintf("DELETE b FROM %soutbox_blocked AS b FORCE INDEX (PRIMARY) WHERE b.lane = %d AND b.route = '' AND (%s)", tables, c.Lane.ID, strings.Join(keys, " OR "))
		unblock.blocks = true
		all = append(all, unblock)
	}
	return append(all, c.unblockRoutes(c.Lane.ID, routes)...)
}

// delete removes exactly these rows, which are pairs of bucket and id, by their
// whole primary key: on a way that looks at others it waits for dispatchers, or
// deadlocks with them.
func (c *claim) delete(rows []string) statement {
	return statement{text: fmt.Sprintf("DELETE o FROM JSON_TABLE('[%s]', '$[*]' COLUMNS (bucket SMALLINT PATH '$[0]', id BIGINT PATH '$[1]')) AS k"+
		" STRAIGHT_JOIN %soutbox AS o FORCE INDEX (PRIMARY) ON o.lane = %d AND o.bucket = k.bucket AND o.id = k.id", strings.Join(rows, ","), qualified(c.db.schema, c.db.prefix), c.Lane.ID)}
}

// bump makes what relays remember of the lane's waiting keys worth nothing.
func (h *holder) bump(lane int16) statement {
	return statement{text: h.db.outbox.Query("bump_blocked"), args: []any{lane}}
}

// unblockRoutes lets go of routes that work again.
func (h *holder) unblockRoutes(lane int16, routes []string) (all []statement) {
	for _, name := range routes {
		all = append(all, statement{text: h.db.outbox.Query("unblock_routes"), args: []any{lane, []byte(name), []byte(name)}, blocks: true})
	}
	return all
}

// block records a failure, and follows its policy.
func (c *claim) block(ctx context.Context, f outbox.Failure, bucket int16) error {
	rec := f.Row.Record
	key, row := []byte(rec.Key), lane.BlockedRow(f.Row)
	if f.Route {
		return c.exec(ctx, c.blocking(c.Lane.ID, f, "", 0, lane.Route))
	}
	if err := c.exec(ctx, c.blocking(c.Lane.ID, f, rec.Key, row, bucket)); err != nil {
		return err
	}
	failed := c.db.failed
	switch {
	case f.Parks():
		if err := c.exec(ctx, statement{text: failed.Query("park"), args: []any{c.Lane.ID, key}}); err != nil {
			return err
		}
		var ids []int64
		if err := c.query(ctx, failed.Query("rows_of_key"), func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id)
			ids = append(ids, id)
			return err
		}, c.Lane.ID, bucket, key, outbox.MaxParked); err != nil {
			return err
		}
		return c.exec(ctx, c.giveUp("parked", bucket, ids, row)...)
	case f.Exhausted:
		all := append(c.giveUp("skipped", bucket, []int64{f.Row.ID}, row), statement{text: failed.Query("let_go"), args: []any{c.Lane.ID, key, row}})
		return c.exec(ctx, all...)
	}
	return nil
}

// blocking returns what counts a failure of a key, of a row without one, or of
// the message's route.
func (h *holder) blocking(lane int16, f outbox.Failure, key string, row int64, bucket int16) statement {
	rec, route := f.Row.Record, ""
	if f.Route {
		route = rec.Name
	}
	return statement{
		text: h.db.outbox.Query("block"),
		args: []any{lane, []byte(route), []byte(key), row, bucket, rec.ID[:], []byte(rec.Name), f.RetryIn.Microseconds(), clip(f.Err.Error(), maxError), string(f.Policy)},
	}
}

// giveUp returns what moves rows to the failure store. BlockedRow is that of the
// entry that says why.
func (c *claim) giveUp(state string, bucket int16, ids []int64, blockedRow int64) []statement {
	rows := make([]string, len(ids))
	for i, id := range ids {
		rows[i] = fmt.Sprintf("[%d,%d]", bucket, id)
	}
	return []statement{{text: c.db.failed.Query("give_up"), args: []any{state, jsonIDs(ids), c.Lane.ID, bucket, blockedRow}}, c.delete(rows)}
}

const maxError = 2000
