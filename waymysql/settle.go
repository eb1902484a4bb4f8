package waymysql

import (
	"context"
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
	statements := c.deletes(published, left)
	for _, f := range failed {
		statements = append(statements, c.block(f, left)...)
	}
	if slices.ContainsFunc(statements, func(s statement) bool { return s.blocks }) {
		// First: its row lock makes those take turns who change what is blocked,
		// because a route is not one bucket's.
		statements = slices.Insert(statements, 0, statement{text: c.db.outbox.Query("bump_blocked"), args: []any{c.Lane.ID}})
	}
	if mutant.Active(mutant.MarkBeforeCommit) {
		c.Settled(left)
	}
	for _, s := range append(statements, statement{text: "COMMIT"}) {
		if _, err := c.conn.ExecContext(ctx, s.text, s.args...); err != nil {
			c.served.Forget()
			return translate(err)
		}
	}
	c.open = false
	c.Settled(left)
	return nil
}

// deletes returns what removes the published rows and unblocks their keys and
// routes, and takes the rows out of left.
func (c *claim) deletes(published []outbox.ClaimedRow, left map[int64]int) []statement {
	if len(published) == 0 {
		return nil
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
		if from.KeyBlocked || from.Bucket == lane.Unkeyed && anyUnkeyed {
			keys = append(keys, "(partition_key = ? AND row_id = ?)")
			unblock.args = append(unblock.args, []byte(row.Record.Key), lane.BlockedRow(row))
		}
		if name := row.Record.Name; row.RouteFailures > 0 && !slices.Contains(routes, name) {
			routes = append(routes, name)
		}
	}
	// Exactly the confirmed rows, by their whole primary key: on a way that looks at
	// others this waits for dispatchers, or deadlocks with them.
	all := []statement{{text: fmt.Sprintf("DELETE o FROM JSON_TABLE('[%s]', '$[*]' COLUMNS (bucket SMALLINT PATH '$[0]', id BIGINT PATH '$[1]')) AS k"+
		" STRAIGHT_JOIN %soutbox AS o FORCE INDEX (PRIMARY) ON o.lane = %d AND o.bucket = k.bucket AND o.id = k.id", strings.Join(rows, ","), tables, c.Lane.ID)}}
	if len(keys) > 0 {
		unblock.text = fmt.Sprintf("DELETE b FROM %soutbox_blocked AS b FORCE INDEX (PRIMARY) WHERE b.lane = %d AND b.route = '' AND (%s)", tables, c.Lane.ID, strings.Join(keys, " OR "))
		unblock.blocks = true
		all = append(all, unblock)
	}
	// A route that works again frees the keys that were blocked for its sake before
	// it was.
	for _, name := range routes {
		all = append(all, statement{
			text:   fmt.Sprintf("DELETE FROM %soutbox_blocked WHERE lane = %d AND (route = ? OR route = '' AND message_name = ?)", tables, c.Lane.ID),
			args:   []any{[]byte(name), []byte(name)},
			blocks: true,
		})
	}
	return all
}

// block returns what records a failure.
func (c *claim) block(f outbox.Failure, left map[int64]int) []statement {
	i, ours := left[f.Row.ID]
	if !ours {
		return nil
	}
	rec := f.Row.Record
	route, key, row, bucket := "", rec.Key, lane.BlockedRow(f.Row), c.Origin(i).Bucket
	if f.Route {
		route, key, row, bucket = rec.Name, "", 0, lane.Route
	}
	return []statement{{
		text:   c.db.outbox.Query("block"),
		args:   []any{c.Lane.ID, []byte(route), []byte(key), row, bucket, rec.ID[:], []byte(rec.Name), f.RetryIn.Microseconds(), clip(f.Err.Error(), maxError)},
		blocks: true,
	}}
}

const maxError = 2000
