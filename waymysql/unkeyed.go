package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/outbox"
)

// unkeyed is the bucket of rows without a key.
const unkeyed = -1

// An unkeyedState has the times and positions of two chores for rows without a key:
// raising the read position, and the search for held rows of released routes.
type unkeyedState struct {
	mu       sync.Mutex
	raised   time.Time // time of the last raise of the read position
	released int64     // one above the version of routes whose search for held rows is done
	looking  int64     // the same for the search in progress
	from     int64     // the id behind which it continues
}

// raisePause is the least time between two raises of the position.
const raisePause = time.Second

// raise reports whether an empty read should raise the position: relays of other
// processes may have published the rows.
func (p *unkeyedState) raise(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := now.Sub(p.raised) >= raisePause
	if due {
		p.raised = now
	}
	return due
}

// restart has the next claim look for held rows.
func (p *unkeyedState) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = -1
}

// readFrom returns whether the search for held rows of released routes is done, and the id
// behind which it continues. When the routes have changed it begins anew.
func (p *unkeyedState) readFrom(version int64) (done bool, from int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.looking != version+1 {
		p.looking, p.from = version+1, 0
	}
	return p.released == version+1, p.from
}

// readDone notes rows that were released under a version of routes.
func (p *unkeyedState) readDone(version int64, ids []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.looking != version+1: // they have changed meanwhile
	case len(ids) == releaseBatch:
		p.from = slices.Max(ids)
	default:
		p.released, p.from = version+1, 0
	}
}

// claimUnkeyed locks rows without a key, which relays share row by row. Rows of a
// blocked route are held instead.
func (c *claim) claimUnkeyed(ctx context.Context, limit outbox.ClaimLimit) (again bool, err error) {
	version, paused, err := c.readRoutes(ctx)
	if err != nil || paused {
		return false, err
	}
	if err := c.release(ctx, version); err != nil {
		return false, err
	}
	began := time.Now()
	after, some := c.on.Unkeyed.After(began), int64(0)
	err = c.conn.QueryRowContext(ctx, c.db.claiming.Query("any_unkeyed"), c.on.Transport, after).Scan(&some)
	c.on.Unkeyed.Took(after, time.Since(began))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, c.raiseUnkeyed(ctx)
	case err != nil:
		return false, err
	}
	if err := c.begin(ctx); err != nil {
		return false, err
	}
	n := min(limit.Rows, c.db.usual.rowsIn(limit.Bytes))
	rows, err := c.read(ctx, c.fill("unkeyed_rows", c.body(n, limit), c.on.Transport, after, n), limit)
	if err != nil {
		return false, err
	}
	held := map[int64]string{} // names by id
	for _, r := range rows {
		if r.Held {
			held[r.Claimed.ID] = r.Claimed.Record.Name
			continue
		}
		c.add(r, claimedRef{bucket: unkeyed, id: r.Claimed.ID})
	}
	if len(held) > 0 {
		return true, c.hold(ctx, held)
	}
	if len(rows) > 0 {
		c.on.Unkeyed.Read(rows[len(rows)-1].Claimed.ID)
	}
	return false, nil
}

// raiseUnkeyed moves the position to the table's next id once in a while: dead versions
// of the rows below it are read until the server has purged them.
func (c *claim) raiseUnkeyed(ctx context.Context) error {
	if !c.on.unkeyed.raise(time.Now()) {
		return nil
	}
	var next sql.NullInt64
	err := c.query(ctx, c.fill("next_unkeyed", c.db.schema, c.db.prefix+"outbox_unkeyed"), func(rows *sql.Rows) error { return rows.Scan(&next) })
	if err == nil && next.Valid {
		c.on.Unkeyed.Read(next.Int64 - 1)
	}
	return err
}

// hold sets rows of blocked routes aside, unless a route is not blocked any more: that
// is certain under the lock of the routes' version, which must be short. So the claim
// begins anew. The routes are read without a lock: a relay may be trying one.
func (c *claim) hold(ctx context.Context, names map[int64]string) error {
	c.rows = nil
	var version int64
	if err := c.conn.QueryRowContext(ctx, c.db.claiming.Query("route_version"), c.on.Transport).Scan(&version); err != nil {
		return err
	}
	if _, _, err := c.readRoutes(ctx); err != nil {
		return err
	}
	var ids []int64
	for id, name := range names {
		if c.routes[name] {
			ids = append(ids, id)
		}
	}
	if err := c.do(ctx, "hold", jsonIDs(ids), c.on.Transport, 0, 1); err != nil {
		return err
	}
	return c.commit(ctx)
}

// readRoutes reads the blocked routes and their version. paused is true also where the number is
// another transport's.
func (c *claim) readRoutes(ctx context.Context) (version int64, paused bool, err error) {
	c.routes = map[string]bool{}
	var found string // the transport's name
	err = c.query(ctx, c.fill("routes", c.on.Transport, c.on.Transport, c.on.Transport), func(rows *sql.Rows) error {
		var branch string
		var n sql.NullInt64
		var name sql.NullString
		err := rows.Scan(&branch, &n, &name)
		switch branch {
		case "paused":
			paused = true
		case "version":
			version, found = n.Int64, name.String
		default:
			c.routes[name.String] = true
		}
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return version, paused || !c.isNamed(found), nil
}

// releaseBatch is how many held rows, or parked ones, one transaction frees.
const releaseBatch = 1000

// release frees rows whose route is not blocked any more: a batch for each claim after
// the blocked routes have changed, until none is left.
func (c *claim) release(ctx context.Context, version int64) error {
	p := &c.on.unkeyed
	done, from := p.readFrom(version)
	if done {
		return nil
	}
	var ids []int64
	if err := c.query(ctx, c.fill("released", c.on.Transport, from, releaseBatch), scanInto(&ids)); err != nil {
		return err
	}
	if len(ids) > 0 {
		if err := c.do(ctx, "hold", jsonIDs(ids), c.on.Transport, 1, 0); err != nil {
			return err
		}
	}
	p.readDone(version, ids)
	c.on.Unkeyed.Again() // another relay may have released rows, too
	return nil
}
