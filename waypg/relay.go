package waypg

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/readpos"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// Traits implements outbox.Store.
func (db *DB) Traits() outbox.StoreTraits {
	return outbox.StoreTraits{IdleTimeout: db.idle, BlocksRoutes: true, KeepsReports: true}
}

// StartRelay implements outbox.Store. Any number of processes may relay. A server or
// role that would end a claim while it publishes is refused. Until the release it
// listens, if it is to.
func (db *DB) StartRelay(ctx context.Context) (func(), error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return nil, err
	}
	if err := db.checkSchema(ctx); err != nil { // again: the tables may have changed
		return nil, err
	}
	rows, err := db.pool.Query(ctx, p.outbox.Query("bad_settings"), db.idle.Milliseconds())
	if err != nil {
		return nil, translate(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[badSetting])
	switch {
	case err != nil:
		return nil, translate(err)
	case len(found) > 0 && found[0].Want == "":
		return nil, fmt.Errorf("%w: the server of %s is a read-only standby: connect the relay to the primary", waybill.ErrUnavailable, p.database)
	case len(found) > 0:
		return nil, fmt.Errorf("waypg: the relay's sessions have %s = %s, want %s: set it for the role or database that the relay connects with", found[0].Name, found[0].Value, found[0].Want)
	}
	return db.listener.hold(ctx, p), nil
}

// A badSetting is a server setting under which a relay cannot work.
type badSetting struct{ Name, Value, Want string }

// Wake implements outbox.Store. With Config.Notify or Config.Listen it also hints
// at commits in other processes, between StartRelay and its release. Messages of a
// caller's transaction give no hint: its commit is not seen.
func (db *DB) Wake(transport string, part outbox.Part) <-chan struct{} {
	db.listener.add(transport)
	return db.wakes.Of(transport, part)
}

// Backlog implements outbox.Store.
func (db *DB) Backlog(ctx context.Context, transport string) (backlog outbox.Backlog, err error) {
	err = db.readRow(ctx, outboxSQL, "backlog", []any{transport}, &backlog.Pending, &backlog.Blocked, &backlog.Delayed)
	return backlog, err
}

// Transports implements outbox.Store.
func (db *DB) Transports(ctx context.Context) ([]string, error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return nil, err
	}
	if err := db.refresh(ctx, p, db.pool.QueryRow); err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	return slices.Sorted(maps.Keys(db.transports)), nil
}

// Report implements outbox.Store.
func (db *DB) Report(ctx context.Context, r outbox.Report) error {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return err
	}
	if r.Ended {
		_, err = db.pool.Exec(ctx, p.outbox.Query("forget_report"), r.Relay.String())
		return translate(err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	problem := r.Problem
	if problem == "" && r.Degraded != "" {
		problem = degradedMark + r.Degraded
	}
	_, err = db.pool.Exec(ctx, p.outbox.Query("report"), r.Relay.String(), r.Transport, host, os.Getpid(), sqlcore.Clip(problem))
	return translate(err)
}

// degradedMark begins a problem that does not stop the relay.
const degradedMark = "degraded: "

// upkeep does the periodic work of a transport: it promotes due messages, reads one
// bucket from its start, ends stuck sessions, and corrects wrong retry times and
// held messages. Claims of Keyed run it when they find no row, and at least every
// 2*stuckEvery.
func (db *DB) upkeep(ctx context.Context, p *catalog, pos *relaying) error {
	if db.due.Swap(false) {
		if err := db.promote(ctx, p); err != nil {
			return err
		}
	}
	if pos.unchecked(stuckEvery) {
		pos.checked.Store(time.Now().UnixNano())
		batch := &pgx.Batch{}
		batch.Queue(p.outbox.Query("end_stuck"), db.idle.Seconds())
		batch.Queue(p.outbox.Query("mend_clock"), pos.Transport, 2*max(time.Duration(db.longest.Load()), minLongest).Seconds())
		if err := db.pool.SendBatch(ctx, batch).Close(); err != nil {
			return fmt.Errorf("upkeep: %w", translate(err))
		}
		if err := db.unhold(ctx, p, pos); err != nil {
			return fmt.Errorf("upkeep: %w", translate(err))
		}
	}
	bucket, marked := pos.NextProbe(time.Now())
	if !marked {
		return nil
	}
	var first *int64
	if err := db.pool.QueryRow(ctx, p.outbox.Query("first_id"), pos.Transport, bucket).Scan(&first); err != nil {
		return translate(err)
	}
	if first != nil {
		pos.LowerWatermark(bucket, *first)
	}
	return nil
}

const (
	// minLongest is the least assumed longest delay: a retry more than twice the
	// longest delay ahead dates from before the clock went back.
	minLongest = 30 * time.Minute
	// unholdBatch is the LIMIT of the statement unhold.
	unholdBatch = 1000
)

// unhold frees held messages without a key whose route is no longer blocked.
func (db *DB) unhold(ctx context.Context, p *catalog, pos *relaying) error {
	rows, err := db.pool.Query(ctx, p.outbox.Query("held_for_nothing"), pos.Transport)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range names {
		for freed := int64(unholdBatch); freed == unholdBatch && ctx.Err() == nil && err == nil; {
			var tag pgconn.CommandTag
			tag, err = db.pool.Exec(ctx, p.outbox.Query("unhold"), pos.Transport, name)
			pos.Unkeyed.Again()
			freed = tag.RowsAffected()
		}
	}
	return err
}

// noteDelay takes note of a delay that an entry gets.
func (db *DB) noteDelay(d time.Duration) {
	for longest := db.longest.Load(); int64(d) > longest && !db.longest.CompareAndSwap(longest, int64(d)); {
		longest = db.longest.Load()
	}
}

// stuckEvery is how often sessions that are stuck are looked for: a frozen relay
// is replaced within its idle timeout and this.
const stuckEvery = 500 * time.Millisecond

// inTx runs fn in a transaction of waybill's own, which the server ends when its process is
// silent for Config.IdleTimeout: a frozen one keeps no lock for longer. Its later statements see
// the rows committed while an earlier one waited, whatever the server's default is.
func (db *DB) inTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	begin := fmt.Sprintf("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = %d", db.idle.Milliseconds())
	return pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{BeginQuery: begin}, fn)
}

// relaying is the state of a transport that this process relays. It is safe for concurrent use.
type relaying struct {
	*readpos.Positions
	checked atomic.Int64 // time of the last look for stuck sessions, in Unix nanoseconds
}

// unchecked reports whether the last look for stuck sessions is so long ago.
func (r *relaying) unchecked(age time.Duration) bool {
	since := time.Since(time.Unix(0, r.checked.Load()))
	return since < 0 || since >= age // the clock may go back
}

// positions returns the state of a transport.
func (db *DB) positions(transport int16) *relaying {
	db.mu.Lock()
	defer db.mu.Unlock()
	at, ok := db.relaying[transport]
	if !ok {
		at = &relaying{Positions: readpos.New(transport, db.buckets)}
		db.relaying[transport] = at
	}
	return at
}
