package waypg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/outbox"
)

// AddTransports implements outbox.Writer.
func (db *DB) AddTransports(ctx context.Context, names ...string) error {
	p, err := db.ready(ctx)
	if err != nil {
		return err
	}
	// Most of the time they are there, and a process that may not write may
	// still read.
	known, err := db.readLanes(ctx, p)
	if err != nil {
		return fmt.Errorf("transports: %w", err)
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := known[name]; return ok })
	if len(names) == 0 {
		return nil
	}
	err = pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) error {
		slices.Sort(names) // two processes insert in one order
		for _, name := range names {
			if _, err := tx.Exec(ctx, p.outbox.Query("add_lane"), name); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, p.outbox.Query("add_buckets"), names, db.bucketCount())
		return err
	})
	if err == nil {
		_, err = db.readLanes(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("transports: %w", translate(err))
	}
	return nil
}

// readLanes reads the numbers of all transports.
func (db *DB) readLanes(ctx context.Context, p *place) (map[string]int16, error) {
	rows, err := db.pool.Query(ctx, p.outbox.Query("lanes"))
	if err != nil {
		return nil, translate(err)
	}
	found := map[string]int16{}
	var id int16
	var name string
	if _, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error { found[name] = id; return nil }); err != nil {
		return nil, translate(err)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.lanes = found
	return found, nil
}

// laneOf returns the number of a row's transport, and 0 for a queue of this
// database.
func (db *DB) laneOf(row outbox.Row) (int16, error) {
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

// Write implements outbox.Writer.
func (db *DB) Write(ctx context.Context, tx pgx.Tx, rows ...outbox.Row) error {
	u, err := db.unitOf(tx)
	if err != nil {
		return err
	}
	if u != nil {
		return u.add(rows)
	}
	p, err := db.ready(ctx)
	if err != nil {
		return err
	}
	if !sameServer(tx.Conn(), db.pool.Config().ConnConfig) {
		if err := db.isOurs(ctx, p, tx.QueryRow); err != nil {
			return err
		}
	}
	batch := &pgx.Batch{}
	if err := db.queueInserts(p, batch, rows); err != nil {
		return err
	}
	if batch.Len() == 1 {
		_, err = tx.Exec(ctx, batch.QueuedQueries[0].SQL, batch.QueuedQueries[0].Arguments...)
	} else {
		err = tx.SendBatch(ctx, batch).Close()
	}
	return db.translateInsert(err)
}

// translateInsert is translate for what inserts into the outbox. That a bucket
// is not its key's says that there are other buckets now.
func (db *DB) translateInsert(err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Code == "23514" && server.ConstraintName == db.prefix+"outbox_bucket_of_key" {
		db.lookAgain()
		return outbox.ErrBucketsChanged
	}
	return translate(err)
}

// sameServer reports whether a connection was made to the place that ours are
// made to.
func sameServer(conn *pgx.Conn, ours *pgx.ConnConfig) bool {
	theirs := conn.Config()
	return theirs.Host == ours.Host && theirs.Port == ours.Port && theirs.Database == ours.Database
}

// isOurs refuses a transaction in which our transports have other numbers, or
// our dispatch locks would be another database's.
func (db *DB) isOurs(ctx context.Context, p *place, row func(ctx context.Context, query string, args ...any) pgx.Row) error {
	db.mu.Lock()
	lanes, err := json.Marshal(db.lanes)
	db.mu.Unlock()
	if err != nil {
		return err
	}
	var ours bool
	if err := row(ctx, p.outbox.Query("is_ours"), p.database, string(lanes)).Scan(&ours); err != nil {
		return translate(err)
	}
	if !ours {
		return errForeign
	}
	return nil
}

var errForeign = errors.New("the transaction is one of another database than the outbox's")

// stored is a row as it is written.
type stored struct {
	outbox.Row
	lane, bucket int16
	headers      string
	body         []byte
	created      time.Time
}

// prepare encodes rows, and returns the locks they need in ascending order.
func (db *DB) prepare(rows []outbox.Row) (all []stored, locks []int32, err error) {
	all = make([]stored, len(rows))
	buckets := db.bucketCount()
	for i, row := range rows {
		s := stored{Row: row, bucket: lane.Unkeyed, body: row.Record.Body, created: row.Record.DispatchedAt}
		if s.body == nil {
			s.body = []byte{} // not NULL
		}
		if s.lane, err = db.laneOf(row); err != nil {
			return nil, nil, err
		}
		if s.headers, err = headers.Encode(row.Record); err != nil {
			return nil, nil, err
		}
		if row.Record.Key != "" {
			n := buckets
			if row.Queue != "" {
				n = queueBuckets
			}
			s.bucket = int16(outbox.Bucket(row.Record.Key, n))
			if row.Unserialized && row.Queue == "" {
				s.bucket += outbox.Unserialized
			}
			// A delayed message is locked and ordered when it is due.
			if lock := lockNumber(s.lane, s.bucket); row.Record.Delay == 0 && !row.Unserialized && !slices.Contains(locks, lock) {
				locks = append(locks, lock)
			}
		}
		all[i] = s
	}
	if mutant.Active(mutant.NoDispatchLock) {
		locks = nil
	}
	slices.Sort(locks)
	return all, locks, nil
}

// A statement that inserts many has at most so many rows and bytes.
const maxInsertRows, maxInsertBytes = 1000, 4 << 20

// queueInserts adds to batch what writes rows: locks first, then the rows.
func (db *DB) queueInserts(p *place, batch *pgx.Batch, rows []outbox.Row) error {
	all, locks, err := db.prepare(rows)
	if err != nil {
		return err
	}
	if len(all) == 1 && all[0].Queue == "" && all[0].Record.Delay == 0 {
		s := all[0]
		var lock *int32
		if len(locks) > 0 {
			lock = &locks[0]
		}
		batch.Queue(p.outbox.Query("insert_one"), p.namespace, lock, s.lane, s.bucket, s.Record.ID.String(), s.Record.Name, s.Record.Key, s.headers, s.body, s.created)
		return nil
	}
	batch.Queue(p.outbox.Query("lock_many"), p.namespace, locks)
	var many columns
	for _, s := range all {
		switch {
		case s.Record.Delay > 0:
			batch.Queue(p.outbox.Query("insert_delayed"), s.created.Add(s.Record.Delay), nullIf(s.lane == 0, s.lane), nullIf(s.Queue == "", s.Queue), s.bucket, s.Record.ID.String(), s.Record.Name, s.Record.Key, s.headers, s.body, s.created)
		case s.Queue != "":
			batch.Queue(p.queue.Query("insert"), s.Queue, s.Record.ID.String(), s.Record.Name, s.Record.Key, s.headers, s.body, s.created)
		default:
			if len(many.ids) == maxInsertRows || many.bytes > maxInsertBytes {
				many.queue(p, batch)
			}
			many.add(s)
		}
	}
	many.queue(p, batch)
	return nil
}

// columns are rows of the outbox as arrays.
type columns struct {
	lanes, buckets       []int16
	ids                  [][]byte
	names, keys, headers []string
	bodies               [][]byte
	created              []time.Time
	bytes                int
}

func (c *columns) add(s stored) {
	c.lanes, c.buckets = append(c.lanes, s.lane), append(c.buckets, s.bucket)
	c.ids = append(c.ids, s.Record.ID[:])
	c.names, c.keys, c.headers = append(c.names, s.Record.Name), append(c.keys, s.Record.Key), append(c.headers, s.headers)
	c.bodies, c.created = append(c.bodies, s.body), append(c.created, s.created)
	c.bytes += len(s.body) + len(s.headers)
}

// queue adds the statement to batch and begins anew.
func (c *columns) queue(p *place, batch *pgx.Batch) {
	if len(c.ids) > 0 {
		batch.Queue(p.outbox.Query("insert_many"), c.lanes, c.buckets, c.ids, c.names, c.keys, c.headers, c.bodies, c.created)
		*c = columns{}
	}
}

func nullIf[T any](null bool, v T) *T {
	if null {
		return nil
	}
	return &v
}
