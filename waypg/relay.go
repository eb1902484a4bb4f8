package waypg

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

// Lead implements outbox.Store. Any number of processes may relay. A server or
// role that would end a claim while it publishes is refused. Until the release it
// listens, if it is to.
func (db *DB) Lead(ctx context.Context) (func(), error) {
	p, err := db.ready(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := db.pool.Query(ctx, p.outbox.Query("hindrances"), db.idle.Milliseconds())
	if err != nil {
		return nil, translate(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[hindrance])
	if err != nil {
		return nil, translate(err)
	}
	if len(found) > 0 {
		return nil, fmt.Errorf("waypg: the relay's sessions have %s = %s, want %s: set it for the role or database that the relay connects with", found[0].Name, found[0].Value, found[0].Want)
	}
	return db.listener.hold(ctx, p), nil
}

// A hindrance is a setting with which nothing can be relayed.
type hindrance struct{ Name, Value, Want string }

// BlocksRoutes implements outbox.RouteStore.
func (db *DB) BlocksRoutes() {}

// Wake implements outbox.Store. With Config.Notify or Config.Listen it also hints
// at commits in other processes, between Lead and its release. What a
// transaction of the caller's own has dispatched is not hinted at: its commit is
// not seen.
func (db *DB) Wake(transport string) <-chan struct{} {
	db.listener.add(transport)
	return db.wake(transport)
}

// Left implements outbox.Store.
func (db *DB) Left(ctx context.Context, transport string) (left outbox.Left, err error) {
	p, err := db.ready(ctx)
	if err != nil {
		return left, err
	}
	err = db.pool.QueryRow(ctx, p.outbox.Query("left"), transport).Scan(&left.Pending, &left.Blocked, &left.Delayed)
	return left, translate(err)
}

// Report implements outbox.Reporter.
func (db *DB) Report(ctx context.Context, r outbox.Report) error {
	p, err := db.ready(ctx)
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
	_, err = db.pool.Exec(ctx, p.outbox.Query("report"), r.Relay.String(), r.Transport, host, os.Getpid(), clip(problem, maxError))
	return translate(err)
}

// degradedMark begins a problem that does not keep anything from going out.
const degradedMark = "degraded: "

// upkeep does what is due: it moves delayed messages, looks at one bucket from
// its start, and ends sessions that are stuck with a bucket. Claims do it when
// they have found nothing, and no less often than twice stuckEvery.
func (db *DB) upkeep(ctx context.Context, p *place, l *lane.Lane) error {
	l.Keep(time.Now())
	if db.due.Swap(false) {
		if err := db.moveDelayed(ctx, p); err != nil {
			return err
		}
	}
	if err := db.upkeepUnserialized(ctx, p, time.Now()); err != nil {
		return err
	}
	if l.Free(time.Now(), stuckEvery) {
		if _, err := db.pool.Exec(ctx, p.outbox.Query("end_stuck"), db.idle.Seconds()); err != nil {
			return fmt.Errorf("end stuck sessions: %w", translate(err))
		}
	}
	bucket, marked := l.Due(time.Now())
	if !marked {
		return nil
	}
	var first *int64
	if err := db.pool.QueryRow(ctx, p.outbox.Query("first_id"), l.ID, bucket).Scan(&first); err != nil {
		return translate(err)
	}
	if first != nil {
		l.Lower(bucket, *first)
	}
	return nil
}

// stuckEvery is how often sessions that are stuck are looked for: a frozen relay
// is replaced within its idle timeout and this.
const stuckEvery = 500 * time.Millisecond

// readCommitted is for transactions whose later statements must see what was
// committed while an earlier one waited, whatever the server's default is.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// lane returns what the relays of this process know of a transport.
func (db *DB) lane(id int16) *lane.Lane {
	db.mu.Lock()
	defer db.mu.Unlock()
	l, ok := db.relaying[id]
	if !ok {
		l = lane.New(id, db.buckets)
		db.relaying[id] = l
	}
	return l
}
