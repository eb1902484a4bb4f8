package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

// Lead implements outbox.Store. Any number of processes may relay.
func (db *DB) Lead(ctx context.Context) (func(), error) {
	if err := db.writer(ctx); err != nil {
		return nil, err
	}
	return func() {}, nil
}

// BlocksRoutes implements outbox.RouteStore.
func (db *DB) BlocksRoutes() {}

// Wake implements outbox.Store.
func (db *DB) Wake(transport string) <-chan struct{} { return db.wake(transport) }

// Left implements outbox.Store.
func (db *DB) Left(ctx context.Context, transport string) (left outbox.Left, err error) {
	if err := db.ready(ctx); err != nil {
		return left, err
	}
	name := []byte(transport)
	err = db.pool.QueryRowContext(ctx, db.outbox.Query("left"), name, name, name, name).Scan(&left.Pending, &left.Blocked, &left.Delayed)
	return left, translate(err)
}

// Report implements outbox.Reporter.
func (db *DB) Report(ctx context.Context, r outbox.Report) error {
	if err := db.ready(ctx); err != nil {
		return err
	}
	if r.Ended {
		_, err := db.pool.ExecContext(ctx, db.outbox.Query("forget_report"), r.Relay[:])
		return translate(err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	problem := clip(r.Problem, maxError)
	_, err = db.pool.ExecContext(ctx, db.outbox.Query("report"), r.Relay[:], []byte(r.Transport), host, os.Getpid(), problem, problem)
	return translate(err)
}

// lane returns what the relays of this process know of a transport.
func (db *DB) lane(id int16) *served {
	db.mu.Lock()
	defer db.mu.Unlock()
	l, ok := db.relaying[id]
	if !ok {
		l = &served{Lane: lane.New(id, db.buckets)}
		db.relaying[id] = l
	}
	return l
}

// upkeep does what is due before a claim: it moves delayed messages, and looks
// at one bucket from its start.
func (db *DB) upkeep(ctx context.Context, l *served) error {
	if err := db.upkeepDelayed(ctx); err != nil {
		return err
	}
	if err := db.upkeepUnserialized(ctx, time.Now()); err != nil {
		return err
	}
	bucket, marked := l.Due(time.Now())
	if !marked {
		return nil
	}
	var first int64
	err := db.pool.QueryRowContext(ctx, db.outbox.Query("first_id"), l.ID, bucket).Scan(&first)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return translate(err)
	}
	l.Lower(bucket, first)
	l.horizon.reopen(bucket, first)
	return nil
}

// among is a table k of ids in ascending order. What is joined to it is looked up,
// and locked, row by row. For WHERE id IN the optimizer may read the whole table,
// and wait for what others write, or deadlock with them.
func among(ids []int64) string {
	return "JSON_TABLE('" + jsonIDs(ids) + "', '$[*]' COLUMNS (id BIGINT PATH '$')) AS k"
}

// jsonIDs is an array of ids in ascending order.
func jsonIDs(ids []int64) string { return "[" + join(slices.Sorted(slices.Values(ids))) + "]" }

// join writes numbers for an IN list.
func join[N int16 | int64](numbers []N) string {
	var b strings.Builder
	for i, n := range numbers {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}
