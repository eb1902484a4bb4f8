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

// moveBatch is how many delayed messages one transaction moves, so that
// dispatchers wait for milliseconds.
const moveBatch = 1000

// upkeepDelayed moves delayed messages that are due to where they go.
func (db *DB) upkeepDelayed(ctx context.Context) error {
	var due bool
	if err := db.pool.QueryRowContext(ctx, db.outbox.Query("any_due")).Scan(&due); err != nil {
		return translate(err)
	}
	for due {
		moved := 0
		err := db.inTx(ctx, func(tx *sql.Tx) (err error) {
			moved, err = db.moveDue(ctx, tx)
			return err
		})
		if err != nil {
			return fmt.Errorf("move delayed messages: %w", translate(err))
		}
		due = moved == moveBatch
	}
	return nil
}

// moveDue moves a batch in order of the time it is due, under the dispatch
// locks, because the ids it gets now must be commit-ordered, and the number of
// buckets must not change meanwhile. The bucket is the one that the key has now.
func (db *DB) moveDue(ctx context.Context, tx *sql.Tx) (int, error) {
	var mover int
	err := tx.QueryRowContext(ctx, db.outbox.Query("mover")).Scan(&mover)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil // another one is at it
	}
	if err != nil {
		return 0, err
	}
	rows, err := tx.QueryContext(ctx, db.outbox.Query("due"), moveBatch)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var ids []int64
	var locks []gate
	buckets := db.bucketCount()
	for rows.Next() {
		var id int64
		var key string
		g := gate{bucket: lane.Unkeyed}
		if err := rows.Scan(&id, &g.lane, &key, &g.name); err != nil {
			return 0, err
		}
		ids = append(ids, id)
		if key == "" {
			continue
		}
		n := queueBuckets
		if g.lane != 0 {
			n, g.name = buckets, gateName(g.name, buckets)
		}
		g.bucket = int16(outbox.Bucket(key, n))
		if !slices.Contains(locks, g) {
			locks = append(locks, g)
		}
	}
	if err := rows.Err(); err != nil || len(ids) == 0 {
		return 0, err
	}
	slices.SortFunc(locks, gate.compare)
	if len(locks) > 0 {
		if err := db.lockGates(ctx, tx, locks, buckets); err != nil {
			return 0, err
		}
	}
	tables, in := qualified(db.schema, db.prefix), "("+join(ids)+")"
	for _, statement := range []string{
		"INSERT INTO " + tables + "outbox (lane, bucket, message_id, message_name, partition_key, headers, body, created_at)" +
			fmt.Sprintf(" SELECT lane, CASE WHEN partition_key = '' THEN -1 ELSE CONV(LEFT(SHA2(partition_key, 256), 4), 16, 10) %% %d + CASE WHEN bucket >= %d THEN %[2]d ELSE 0 END END, message_id, message_name, partition_key, headers, body, due_at FROM ", buckets, outbox.Unserialized) + tables + "delayed WHERE lane IS NOT NULL AND id IN " + in + " ORDER BY due_at, id",
		"INSERT INTO " + tables + "queue (queue, message_id, message_name, partition_key, headers, body, created_at)" +
			" SELECT queue, message_id, message_name, partition_key, headers, body, due_at FROM " + tables + "delayed WHERE queue IS NOT NULL AND id IN " + in + " ORDER BY due_at, id",
		"DELETE d FROM " + among(ids) + " STRAIGHT_JOIN " + tables + "delayed AS d FORCE INDEX (PRIMARY) ON d.id = k.id",
	} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return 0, err
		}
	}
	return len(ids), nil
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
