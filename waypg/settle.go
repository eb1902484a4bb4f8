package waypg

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/outbox"
)

// Settle implements outbox.Claim: one round trip deletes, records failures and
// commits. Marks move after it, and not before.
func (c *claim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if c.conn == nil {
		return nil
	}
	defer c.end()
	left := c.Left()
	settling := &pgx.Batch{}
	changed := c.queueDelete(settling, published, failed, left)
	for _, f := range failed {
		changed = c.queueBlock(settling, f, left) || changed
	}
	batch := &pgx.Batch{}
	if changed {
		// First: its row lock makes those take turns who change what is blocked,
		// because a route is not one bucket's.
		batch.Queue(c.at.outbox.Query("bump_blocked"), c.Lane.ID)
	}
	batch.QueuedQueries = append(batch.QueuedQueries, settling.QueuedQueries...)
	batch.Queue("COMMIT")
	if mutant.Active(mutant.MarkBeforeCommit) {
		c.Settled(left)
	}
	gone, err := c.send(ctx, batch)
	if err != nil {
		c.Lane.Forget()
		return translate(err)
	}
	if gone != len(published) { // a row is not where it was read: nothing is known of its bucket
		c.Lane.Forget()
		return nil
	}
	c.Settled(left)
	return nil
}

// queueDelete adds what removes the published rows, takes them out of left and
// unblocks their keys and routes, but for keys whose head has failed in front of
// them. It reports whether any was blocked.
func (c *claim) queueDelete(batch *pgx.Batch, published []outbox.ClaimedRow, failed []outbox.Failure, left map[int64]int) (unblocked bool) {
	if len(published) == 0 {
		return false
	}
	stays := map[string]bool{}
	for _, f := range failed {
		stays[f.Row.Record.Key] = f.Row.Record.Key != ""
	}
	at, ids := make([]pgtype.TID, len(published)), make([]int64, len(published))
	var routes, keys []string
	var rows []int64
	_, anyUnkeyed := c.State.Next[lane.Unkeyed]
	for i, row := range published {
		from := c.Origin(left[row.ID])
		delete(left, row.ID)
		at[i], ids[i] = tidOf(from.At), row.ID
		// A row without key may have been refused elsewhere in the moment before it
		// was claimed here.
		if from.KeyBlocked && !stays[row.Record.Key] || from.Bucket == lane.Unkeyed && anyUnkeyed {
			keys, rows = append(keys, row.Record.Key), append(rows, lane.BlockedRow(row))
			unblocked = true
		}
		if name := row.Record.Name; row.RouteFailures > 0 && !slices.Contains(routes, name) {
			routes = append(routes, name)
			unblocked = true
		}
	}
	batch.Queue(c.at.outbox.Query("delete_outbox"), at, ids)
	if len(keys) > 0 {
		batch.Queue(c.at.outbox.Query("unblock"), c.Lane.ID, keys, rows)
	}
	if len(routes) > 0 {
		batch.Queue(c.at.outbox.Query("unblock_routes"), c.Lane.ID, routes)
	}
	return unblocked
}

// queueBlock adds what records a failure.
func (c *claim) queueBlock(batch *pgx.Batch, f outbox.Failure, left map[int64]int) bool {
	i, ours := left[f.Row.ID]
	if !ours {
		return false
	}
	rec := f.Row.Record
	route, key, row, bucket := "", rec.Key, lane.BlockedRow(f.Row), c.Origin(i).Bucket
	if f.Route {
		route, key, row, bucket = rec.Name, "", 0, lane.Route
	}
	batch.Queue(c.at.outbox.Query("block"), c.Lane.ID, route, key, row, bucket, rec.ID.String(), rec.Name, f.RetryIn.Seconds(), clip(f.Err.Error(), maxError), string(f.Policy))
	switch {
	case f.Parks():
		batch.Queue(c.at.failed.Query("park"), c.Lane.ID, key)
		batch.Queue(c.at.failed.Query("park_rows"), c.Lane.ID, bucket, key, outbox.MaxParked)
	case f.Exhausted:
		batch.Queue(c.at.failed.Query("skip"), c.Lane.ID, bucket, f.Row.ID, key, row)
	}
	return true
}

// send sends batch and returns how many rows of the outbox it has deleted, or its
// first error.
func (h *holder) send(ctx context.Context, batch *pgx.Batch) (gone int, err error) {
	results := h.conn.SendBatch(ctx, batch)
	for i := range batch.Len() {
		tag, err := results.Exec()
		if batch.QueuedQueries[i].SQL == h.at.outbox.Query("delete_outbox") {
			gone = int(tag.RowsAffected())
		}
		if err == nil && i == batch.Len()-1 && tag.String() == "ROLLBACK" {
			err = pgx.ErrTxCommitRollback
		}
		if err != nil {
			_ = results.Close() // it says the same
			return 0, err
		}
	}
	return gone, results.Close()
}

const maxError = 2000

// clip bounds the text of an error, which a broker may have worded, to what a
// table takes.
func clip(s string, max int) string {
	s = cleanText(s)
	if len(s) > max {
		return fmt.Sprintf("%.*s...", max, s)
	}
	return s
}
