package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// A claim is an open transaction that has locked rows, and the buckets or entries
// that they belong to.
type claim struct {
	db    *DB
	name  string    // of the transport
	conn  *sql.Conn // nil once it has ended
	open  bool      // the transaction is
	on    *relayed
	part  outbox.Part
	batch *readpos.Batch // of Keyed
	rows  []outbox.ClaimedRow
	at    map[*waybill.Record]claimedRef

	bumped   map[int16]bool     // buckets whose version Settle has changed
	refused  []statement        // of Settle: entries that were refused again
	routes   map[string]bool    // that are blocked
	keys     map[int16][]string // by bucket: blocked keys
	manyKeys bool               // keys lacks some
}

// A claimedRef is the storage location of a claimed row.
type claimedRef struct {
	bucket int16 // -1 without a key
	id     int64
	held   int    // of a row without a key
	entry  *entry // that blocked it; nil where it is claimed for the first time
}

// Claim implements outbox.Store.
func (db *DB) Claim(ctx context.Context, transport string, part outbox.Part, limit outbox.ClaimLimit) (outbox.Claim, error) {
	if err := errors.Join(db.writer(ctx), db.recheck(ctx)); err != nil {
		return nil, err
	}
	id, err := db.transport(ctx, transport)
	if err != nil || id == 0 {
		return &claim{}, err
	}
	if part == outbox.Keyed {
		if err := db.upkeep(ctx, id, transport); err != nil {
			return nil, err
		}
	}
	halfway := readpos.Halfway(ctx)
	for {
		on := db.relaying(id) // replaced when the number of buckets changes
		c, again, err := db.claim(ctx, on, transport, part, limit)
		if err != nil {
			on.reset()
			return nil, fmt.Errorf("claim %v: %w", part, translate(err))
		}
		if !again || halfway() || db.changed.Load() {
			return c, nil
		}
	}
}

// recheck looks anew at a server, or at tables, that a claim found to be others than before: its
// settings are not those that were checked, and transports may have other numbers.
func (db *DB) recheck(ctx context.Context) error {
	if !db.changed.Swap(false) {
		return nil
	}
	_, err := db.checkSchema(ctx)
	if err == nil {
		err = db.checkServer(ctx)
	}
	if err == nil {
		_, err = db.readTransports(ctx, db.pool)
	}
	db.mu.Lock()
	clear(db.relayed) // positions in other tables
	db.mu.Unlock()
	if err != nil {
		db.changed.Store(true)
	}
	return err
}

// isNamed reports whether the number of the claim's transport is still its own.
func (c *claim) isNamed(name string) bool {
	if name == c.name {
		return true
	}
	c.db.changed.Store(true)
	return false
}

// claim makes one attempt. again is true if later rows may be publishable, or if the
// positions were out of date.
func (db *DB) claim(ctx context.Context, on *relayed, name string, part outbox.Part, limit outbox.ClaimLimit) (c *claim, again bool, err error) {
	pool, err := db.relayPool(ctx)
	if err != nil {
		return nil, false, err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return nil, false, err
	}
	c = &claim{db: db, name: name, conn: conn, on: on, part: part, at: map[*waybill.Record]claimedRef{}}
	defer func() {
		if err != nil || again || len(c.rows) == 0 {
			c.end()
		}
	}()
	switch part {
	case outbox.Unkeyed:
		again, err = c.claimUnkeyed(ctx, limit)
	case outbox.Retries:
		again, err = c.claimRetries(ctx, limit)
	default:
		c.batch = readpos.NewBatch(on.Positions)
		again, err = c.claimKeyed(ctx, limit)
		c.rows = c.batch.Rows
		for _, row := range c.rows {
			at, _ := c.batch.Origin(row)
			c.at[row.Record] = claimedRef{bucket: at.Bucket, id: row.ID}
		}
	}
	if err == nil && !again {
		err = c.flush(ctx)
	}
	if err == nil && len(c.rows) > 0 { // ctx that ends as a statement does breaks the connection without an error
		err = ctx.Err()
	}
	return c, again, err
}

// Rows implements outbox.Claim.
func (c *claim) Rows() []outbox.ClaimedRow { return c.rows }

func (c *claim) begin(ctx context.Context) error {
	err := c.exec(ctx, "START TRANSACTION")
	c.open = err == nil
	return err
}

// do runs a statement of the outbox.
func (c *claim) do(ctx context.Context, name string, args ...any) error {
	return c.exec(ctx, c.db.outbox.Query(name), args...)
}

func (c *claim) exec(ctx context.Context, text string, args ...any) error {
	_, err := c.conn.ExecContext(ctx, text, args...)
	return err
}

func (c *claim) commit(ctx context.Context) error {
	err := c.exec(ctx, "COMMIT")
	c.open = err != nil
	return err
}

// fill returns a statement of a claim, or a part of one.
func (c *claim) fill(name string, args ...any) clause {
	return fill(c.db.claiming.Query(name), args...)
}

// query runs a statement and scans each row.
func (c *claim) query(ctx context.Context, s clause, scan func(rows *sql.Rows) error) error {
	return each(ctx, c.conn, s.text, scan, s.args...)
}

// flush makes the rows that were read durable. InnoDB shows a commit before it is
// in the log: a server that is killed in between forgets the row, and gives its id
// to another. A later commit, by the pool, is written after all commits seen here.
// The claim's session is silent meanwhile: the ping shows that it is alive, and
// restarts its idle timeout.
func (c *claim) flush(ctx context.Context) error {
	if len(c.rows) == 0 || !c.db.showsUnwritten() {
		return nil
	}
	if _, err := c.db.pool.ExecContext(ctx, c.db.outbox.Query("flush")); err != nil {
		return err
	}
	return c.conn.PingContext(ctx)
}

// end gives the connection back, and with it all locks.
func (c *claim) end() {
	if c.conn == nil {
		return
	}
	conn := c.conn
	c.conn = nil
	if c.open {
		ctx, cancel := context.WithTimeout(context.Background(), sqlcore.RollbackTimeout)
		defer cancel()
		if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			discard(conn)
		}
	}
	_ = conn.Close()
}

// relayed is the state of a transport in the relays of this process.
type relayed struct {
	*readpos.Positions
	unkeyed unkeyedState
}

// reset drops all positions: after an error it is unknown whether the claim committed.
func (on *relayed) reset() {
	on.Reset()
	on.unkeyed.restart()
}

func (db *DB) relaying(transport int16) *relayed {
	db.mu.Lock()
	defer db.mu.Unlock()
	on, ok := db.relayed[transport]
	if !ok {
		on = &relayed{Positions: readpos.New(transport, db.buckets)}
		db.relayed[transport] = on
	}
	return on
}

// upkeep precedes a claim: it promotes delayed messages, and once a second reads one
// bucket from its start.
func (db *DB) upkeep(ctx context.Context, id int16, transport string) error {
	if err := db.promote(ctx); err != nil {
		return err
	}
	on := db.relaying(id)
	bucket, marked := on.NextProbe(time.Now())
	if !marked {
		return nil
	}
	var sentinels int
	var first sql.NullInt64
	err := db.pool.QueryRowContext(ctx, db.claiming.Query("probe"), id, bucket, id, id, bucket).Scan(&sentinels, &first)
	if err == nil && first.Valid {
		on.LowerWatermark(bucket, first.Int64)
	}
	if err == nil && sentinels < 3 { // TRUNCATE, or DELETE by hand
		err = db.addSentinels(ctx, db.pool, transport, on.Buckets())
	}
	return translate(err)
}
