package waysqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// cursor lets a claim begin behind the rows of keys that wait, so that they
// cost nothing. It holds until the first of them is due or the lane's blocked
// keys change.
type cursor struct {
	after   int64
	version int64
	until   int64 // microseconds; 0 means for ever
}

// Claim implements outbox.Store. No transaction is open while the relay
// publishes: one process relays the file, one claim of a lane at a time, and
// rows are only deleted by it.
func (db *DB) Claim(ctx context.Context, transport string, max outbox.Max) (_ outbox.Claim, err error) {
	if err := db.moveDue(ctx); err != nil {
		return nil, err
	}
	c := &claim{db: db, blocked: map[int64]bool{}}
	var version int64
	err = db.reader.QueryRowContext(ctx, db.outboxSQL.Query("lane"), transport).Scan(&c.lane, &version)
	if errors.Is(err, sql.ErrNoRows) {
		return c, nil // nobody has dispatched to it yet
	}
	if err != nil {
		return nil, translate(err)
	}
	if !db.hold(c.lane) {
		return c, nil // another relay of this process has it
	}
	defer func() {
		if err != nil || len(c.rows) == 0 {
			db.letGo(c.lane)
		}
	}()
	// The snapshot is taken after hold, or it could show what the last holder
	// has published since.
	tx, err := db.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, translate(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := tx.QueryRowContext(ctx, db.outboxSQL.Query("lane"), transport).Scan(&c.lane, &version); err != nil {
		return nil, translate(err)
	}
	var now int64
	if err := tx.QueryRowContext(ctx, db.outboxSQL.Query("now")).Scan(&now); err != nil {
		return nil, translate(err)
	}
	db.mu.Lock()
	from := db.cursors[c.lane]
	db.mu.Unlock()
	if from.version != version || from.until != 0 && now >= from.until {
		from = cursor{version: version}
	}
	if err := c.read(ctx, tx, from.after, now, max); err != nil {
		return nil, err
	}
	var until sql.NullInt64
	if err := tx.QueryRowContext(ctx, db.outboxSQL.Query("next_unblocking"), c.lane, now).Scan(&until); err != nil {
		return nil, translate(err)
	}
	if until.Valid {
		from.until = until.Int64
		// What lies before the first row belongs to keys that wait.
		if len(c.rows) > 0 {
			from.after = c.rows[0].ID - 1
		} else if err := tx.QueryRowContext(ctx, db.outboxSQL.Query("last_id"), c.lane).Scan(&from.after); err != nil {
			return nil, translate(err)
		}
	} else {
		from.after, from.until = 0, 0
	}
	db.mu.Lock()
	db.cursors[c.lane] = from
	db.mu.Unlock()
	return c, nil
}

// hold takes a lane for one claim.
func (db *DB) hold(lane int64) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	free := !db.claimed[lane]
	db.claimed[lane] = true
	return free
}

func (db *DB) letGo(lane int64) {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.claimed, lane)
}

// read fills c with what lies behind after.
func (c *claim) read(ctx context.Context, tx *sql.Tx, after, now int64, max outbox.Max) error {
	rows, err := tx.QueryContext(ctx, c.db.outboxSQL.Query("claim"), c.lane, after, now, max.Rows)
	if err != nil {
		return translate(err)
	}
	defer func() { _ = rows.Close() }()
	size := 0
	for rows.Next() {
		row := outbox.ClaimedRow{Record: &waybill.Record{}}
		rec := row.Record
		var meta string
		var created int64
		var blocked bool
		if err := rows.Scan(&row.ID, &rec.ID, &rec.Name, &rec.Key, &meta, &rec.Body, &created, &row.Failures, &blocked); err != nil {
			return err
		}
		if size += len(rec.Body) + len(meta); size > max.Bytes && len(c.rows) > 0 {
			break
		}
		rec.DispatchedAt = micros(created)
		rec.Problem = headers.Decode(rec, meta)
		c.rows = append(c.rows, row)
		if blocked {
			c.blocked[row.ID] = true
		}
	}
	return translate(rows.Err())
}

type claim struct {
	db      *DB
	lane    int64
	rows    []outbox.ClaimedRow
	blocked map[int64]bool // rows of keys that are blocked, by id
}

func (c *claim) Rows() []outbox.ClaimedRow { return c.rows }

// Settle implements outbox.Claim.
func (c *claim) Settle(ctx context.Context, published []outbox.ClaimedRow, failed []outbox.Failure) error {
	if len(c.rows) == 0 {
		return nil
	}
	defer c.db.letGo(c.lane)
	if len(published)+len(failed) == 0 {
		return nil
	}
	ids := make([]int64, len(published))
	for i, row := range published {
		ids[i] = row.ID
	}
	stays := map[string]bool{} // keys whose head is refused, whatever of them was published together with it
	for _, f := range failed {
		stays[f.Row.Record.Key] = f.Row.Record.Key != ""
	}
	parked, err := c.rowsToPark(ctx, failed)
	if err != nil {
		return err
	}
	remove, err := c.db.stmt(ctx, c.db.outboxSQL.Query("delete_outbox"))
	if err != nil {
		return err
	}
	return c.db.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.StmtContext(ctx, remove).ExecContext(ctx, list(ids)); err != nil {
			return err
		}
		changed := len(failed) > 0
		for _, row := range published {
			if c.blocked[row.ID] && !stays[row.Record.Key] {
				changed = true
				if _, err := tx.ExecContext(ctx, c.db.outboxSQL.Query("unblock"), c.lane, row.Record.Key, blockedRow(row)); err != nil {
					return err
				}
			}
		}
		for _, f := range failed {
			if err := c.block(ctx, tx, f); err != nil {
				return err
			}
			if !f.Exhausted {
				continue
			}
			if err := c.giveUp(ctx, tx, f, parked[f.Row.Record.Key]); err != nil {
				return err
			}
		}
		if !changed {
			return nil
		}
		_, err := tx.ExecContext(ctx, c.db.outboxSQL.Query("bump_blocked"), c.lane)
		return err
	})
}

func (c *claim) block(ctx context.Context, tx *sql.Tx, f outbox.Failure) error {
	var now int64
	if err := tx.QueryRowContext(ctx, c.db.outboxSQL.Query("now")).Scan(&now); err != nil {
		return err
	}
	rec := f.Row.Record
	_, err := tx.ExecContext(ctx, c.db.outboxSQL.Query("block"), c.lane, rec.Key, blockedRow(f.Row), rec.ID[:], rec.Name, now, f.RetryIn.Microseconds(), clip(f.Err.Error(), maxError), string(f.Policy))
	return err
}

// rowsToPark returns the rows of each key that is to be parked, from the first in
// the claim: where several are on their way together, the refused one need not be
// the first that stays. It looks before anything is written, because dispatchers
// need not wait for that: what they commit meanwhile waits in the outbox.
func (c *claim) rowsToPark(ctx context.Context, failed []outbox.Failure) (map[string][]int64, error) {
	parks := map[string]bool{}
	for _, f := range failed {
		if f.Parks() {
			parks[f.Row.Record.Key] = true
		}
	}
	var heads []int64
	found := map[string][]int64{}
	for _, row := range c.rows {
		if key := row.Record.Key; parks[key] && found[key] == nil {
			heads = append(heads, row.ID)
			found[key] = []int64{row.ID}
		}
	}
	if len(heads) == 0 {
		return nil, nil
	}
	rows, err := c.db.reader.QueryContext(ctx, c.db.failedSQL.Query("followers"), c.lane, list(heads), outbox.MaxParked-1, parkWithin)
	if err != nil {
		return nil, translate(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id int64
		var key string
		if err := rows.Scan(&id, &key); err != nil {
			return nil, err
		}
		found[key] = append(found[key], id)
	}
	return found, translate(rows.Err())
}

// parkWithin bounds the look for the rows of a key to that many ids after its head:
// no index has them, and the relay publishes nothing meanwhile. What is beyond
// waits in the outbox.
const parkWithin = 100_000

// giveUp moves what is to be parked, or else the refused row alone, to the failure
// store. What is published is deleted by then.
func (c *claim) giveUp(ctx context.Context, tx *sql.Tx, f outbox.Failure, parked []int64) error {
	state, ids := admin.Skipped, []int64{f.Row.ID}
	if f.Parks() {
		state, ids = admin.Parked, parked
	}
	if _, err := tx.ExecContext(ctx, c.db.failedSQL.Query("keep"), state, list(ids)); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, c.db.outboxSQL.Query("delete_outbox"), list(ids)); err != nil {
		return err
	}
	var err error
	if f.Parks() {
		_, err = tx.ExecContext(ctx, c.db.failedSQL.Query("park"), c.lane, f.Row.Record.Key)
	} else {
		_, err = tx.ExecContext(ctx, c.db.outboxSQL.Query("unblock"), c.lane, f.Row.Record.Key, blockedRow(f.Row))
	}
	return err
}

// blockedRow is the row_id of a blocked entry: a key blocks as a whole, a
// message without key alone.
func blockedRow(row outbox.ClaimedRow) int64 {
	if row.Record.Key == "" {
		return row.ID
	}
	return 0
}

const maxError = 2000

func clip(s string, max int) string {
	if len(s) > max {
		return s[:max] + "..."
	}
	return s
}
