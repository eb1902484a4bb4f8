package waysqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// AddTransports implements outbox.Writer.
func (db *DB) AddTransports(ctx context.Context, names ...string) error {
	if err := db.checkSchema(ctx); err != nil {
		return err
	}
	err := db.write(ctx, func(tx *sql.Tx) error {
		for _, name := range names {
			if _, err := tx.ExecContext(ctx, db.outboxSQL.Query("add_lane"), name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("transports: %w", err)
	}
	rows, err := db.reader.QueryContext(ctx, db.outboxSQL.Query("lanes"))
	if err != nil {
		return translate(err)
	}
	defer func() { _ = rows.Close() }()
	db.mu.Lock()
	defer db.mu.Unlock()
	for rows.Next() {
		var id int64
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			return err
		}
		db.lanes[name] = id
	}
	return translate(rows.Err())
}

// laneOf returns the number of a row's transport, and 0 for a queue of this
// database.
func (db *DB) laneOf(row outbox.Row) (int64, error) {
	if row.Queue != "" {
		return 0, nil
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	lane, ok := db.lanes[row.Transport]
	if !ok {
		return 0, fmt.Errorf("unknown transport %q", row.Transport)
	}
	return lane, nil
}

// write runs fn in a transaction of the writer. Inside a unit of work, which
// has the writer's only connection, it would wait for itself and is refused.
func (db *DB) write(ctx context.Context, fn func(tx *sql.Tx) error) error {
	if ctx.Value(insideKey{db}) != nil {
		return waybill.ErrNestedTransaction
	}
	tx, err := db.writer.BeginTx(ctx, nil)
	if err != nil {
		return translate(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tx); err != nil {
		return translate(err)
	}
	return translate(tx.Commit())
}

// Lead implements outbox.Store: one process relays a file. Relays of several
// transports in one process share its right.
func (db *DB) Lead(ctx context.Context) (func(), error) {
	if err := db.checkSchema(ctx); err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.leaders == 0 {
		lock, err := lockFile(db.path + ".relay")
		if err != nil {
			return nil, err
		}
		db.leaderLock = lock
		clear(db.cursors) // another process may have relayed meanwhile
	}
	db.leaders++
	return func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		if db.leaders--; db.leaders == 0 {
			db.leaderLock.unlock()
		}
	}, nil
}

// Wake implements outbox.Store.
func (db *DB) Wake(transport string) <-chan struct{} { return db.wake(transport) }

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
	tx, err := db.reader.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, translate(err)
	}
	defer func() { _ = tx.Rollback() }()
	c := &claim{db: db, blocked: map[int64]bool{}}
	var version int64
	err = tx.QueryRowContext(ctx, db.outboxSQL.Query("lane"), transport).Scan(&c.lane, &version)
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
		var headers string
		var created int64
		var blocked bool
		if err := rows.Scan(&row.ID, &rec.ID, &rec.Name, &rec.Key, &headers, &rec.Body, &created, &row.Failures, &blocked); err != nil {
			return err
		}
		if size += len(rec.Body) + len(headers); size > max.Bytes && len(c.rows) > 0 {
			break
		}
		rec.DispatchedAt = micros(created)
		rec.Problem = decodeHeaders(rec, headers)
		c.rows = append(c.rows, row)
		if blocked {
			c.blocked[row.ID] = true
		}
	}
	return translate(rows.Err())
}

// moveDue moves delayed messages that are due to where they go.
func (db *DB) moveDue(ctx context.Context) error {
	var now int64
	var due bool
	if err := db.reader.QueryRowContext(ctx, db.outboxSQL.Query("now")).Scan(&now); err != nil {
		return translate(err)
	}
	if err := db.reader.QueryRowContext(ctx, db.outboxSQL.Query("any_due"), now).Scan(&due); err != nil || !due {
		return translate(err)
	}
	err := db.write(ctx, func(tx *sql.Tx) error {
		for _, name := range []string{"due_to_outbox", "due_to_queue", "delete_due"} {
			if _, err := tx.ExecContext(ctx, db.outboxSQL.Query(name), now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("move delayed messages: %w", err)
	}
	return nil
}

// Left implements outbox.Store.
func (db *DB) Left(ctx context.Context, transport string) (outbox.Left, error) {
	var left outbox.Left
	var lane, version int64
	err := db.reader.QueryRowContext(ctx, db.outboxSQL.Query("lane"), transport).Scan(&lane, &version)
	if errors.Is(err, sql.ErrNoRows) {
		return left, nil
	}
	if err == nil {
		err = db.reader.QueryRowContext(ctx, db.outboxSQL.Query("left"), lane).Scan(&left.Pending, &left.Blocked, &left.Delayed)
	}
	return left, translate(err)
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
	list, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	remove, err := c.db.stmt(ctx, c.db.outboxSQL.Query("delete_outbox"))
	if err != nil {
		return err
	}
	return c.db.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.StmtContext(ctx, remove).ExecContext(ctx, string(list)); err != nil {
			return err
		}
		changed := len(failed) > 0
		for _, row := range published {
			if c.blocked[row.ID] {
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
	_, err := tx.ExecContext(ctx, c.db.outboxSQL.Query("block"), c.lane, rec.Key, blockedRow(f.Row), rec.ID[:], rec.Name, now, f.RetryIn.Microseconds(), clip(f.Err.Error(), maxError))
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
