package waypg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/outbox"
)

// AddTransports implements outbox.Writer. It also adds missing bucket rows: a
// transport may have been inserted by SQL.
func (db *DB) AddTransports(ctx context.Context, names ...string) error {
	if err := db.addTransports(ctx, names); err != nil {
		return fmt.Errorf("transports: %w", translate(err))
	}
	return nil
}

func (db *DB) addTransports(ctx context.Context, names []string) error {
	p, err := db.resolve(ctx)
	if err != nil {
		return err
	}
	if err := db.checkVersion(ctx); err != nil {
		return err
	}
	// Most of the time they are there, and a process that may not write may
	// still read.
	if err := db.refresh(ctx, p, db.pool.QueryRow); err != nil {
		return err
	}
	var wrong bool
	if err := db.pool.QueryRow(ctx, p.outbox.Query("buckets_wrong")).Scan(&wrong); err != nil {
		return err
	}
	if wrong || slices.ContainsFunc(names, func(name string) bool { return db.knownTransport(name) == 0 }) {
		if err := db.inTx(ctx, func(tx pgx.Tx) error { return mendBuckets(ctx, tx, p, names) }); err != nil {
			return err
		}
	}
	db.recheckSchema()
	_, err = db.ensureSchema(ctx)
	return err
}

// mendBuckets adds transports, inserts missing bucket rows and deletes surplus ones.
func mendBuckets(ctx context.Context, tx pgx.Tx, p *catalog, transports []string) error {
	batch := &pgx.Batch{}
	batch.Queue(p.outbox.Query("add_transports"), transports)
	batch.Queue(p.outbox.Query("add_buckets"))
	batch.Queue(p.outbox.Query("remove_buckets"))
	return tx.SendBatch(ctx, batch).Close()
}

// Write implements outbox.Writer.
func (db *DB) Write(ctx context.Context, tx pgx.Tx, rows ...outbox.Row) error {
	u, err := db.unitOf(tx)
	if err != nil {
		return err
	}
	if u != nil {
		return u.Add(rows)
	}
	p, err := db.resolveInTx(ctx, tx.QueryRow)
	if err != nil {
		return err
	}
	if !sameServer(tx.Conn(), db.pool.Config().ConnConfig) {
		if err := isOurs(ctx, p, tx.QueryRow); err != nil {
			return err
		}
	}
	batch := &pgx.Batch{}
	if err := db.queueInserts(p, batch, rows); err != nil {
		return err
	}
	return db.translateInsert(sendAll(ctx, tx, batch))
}

// sendAll runs statements in one round trip. A single one costs less without a batch.
func sendAll(ctx context.Context, to interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}, batch *pgx.Batch) error {
	if batch.Len() > 1 {
		return to.SendBatch(ctx, batch).Close()
	}
	only := batch.QueuedQueries[0]
	_, err := to.Exec(ctx, only.SQL, only.Arguments...)
	return err
}

// translateInsert is translate for a statement that inserts messages, where a
// bucket or transport that differs from this process's cache is NULL.
func (db *DB) translateInsert(err error) error {
	var server *pgconn.PgError
	if !errors.As(err, &server) || server.Code != "23502" && server.Code != "23514" || !strings.HasPrefix(server.TableName, db.prefix) {
		return translate(err)
	}
	switch {
	case server.ColumnName == "bucket":
		db.recheckSchema()
		return outbox.ErrBucketsChanged
	case server.ColumnName == "transport", server.ConstraintName == db.prefix+"delayed_target":
		db.recheckSchema()
		return fmt.Errorf("%w, or its transports were numbered anew: run the transaction again", errForeign)
	}
	return translate(err)
}

// sameServer reports whether a connection goes to the server and database of the
// pool.
func sameServer(conn *pgx.Conn, ours *pgx.ConnConfig) bool {
	theirs := conn.Config()
	return theirs.Host == ours.Host && theirs.Port == ours.Port && theirs.Database == ours.Database
}

// isOurs refuses a transaction of another database, whose dispatch locks would not
// be the outbox's.
func isOurs(ctx context.Context, p *catalog, ask queryRow) error {
	var database string
	if err := ask(ctx, connecting.Query("database")).Scan(&database); err != nil {
		return translate(err)
	}
	if database != p.database {
		return errForeign
	}
	return nil
}

var errForeign = errors.New("the transaction is one of another database than the outbox's")

// stored is a row as it is written.
type stored struct {
	outbox.Row
	transport int16
	bucket    int16
	buckets   int // the number by which bucket was computed
	headers   string
	body      []byte
	created   time.Time
}

// prepare encodes rows, and returns the locks they need in ascending order.
func (db *DB) prepare(rows []outbox.Row) (all []stored, locks []int32, err error) {
	all = make([]stored, len(rows))
	for i, row := range rows {
		s := stored{Row: row, bucket: unkeyed, buckets: queueBuckets, body: row.Record.Body, created: row.Record.DispatchedAt}
		if s.body == nil {
			s.body = []byte{} // not NULL
		}
		if row.Queue == "" {
			s.buckets = db.bucketCount()
			if s.transport = db.knownTransport(row.Transport); s.transport == 0 {
				return nil, nil, fmt.Errorf("unknown transport %q", row.Transport)
			}
		}
		if s.headers, err = headers.Encode(row.Record); err != nil {
			return nil, nil, err
		}
		if row.Record.Key != "" {
			s.bucket = int16(outbox.Bucket(row.Record.Key, s.buckets))
			// A delayed message is locked and ordered when it is due.
			if lock := lockNumber(s.transport, s.bucket); row.Record.Delay == 0 && !slices.Contains(locks, lock) {
				locks = append(locks, lock)
			}
		}
		all[i] = s
	}
	slices.Sort(locks)
	return all, locks, nil
}

// statement returns the insert of the row alone, under a lock that it takes, or for nil under
// locks taken before.
func (s stored) statement(p *catalog, lock *int32) (query string, args []any) {
	id, rec := s.Record.ID.String(), s.Record
	switch {
	case rec.Delay > 0:
		return p.outbox.Query("insert_delayed"), []any{s.transport, s.Transport, nullIf(s.Queue == "", s.Queue), s.created.Add(rec.Delay), id, rec.Name, rec.Key, s.headers, s.body, s.created}
	case s.Queue != "":
		return p.queue.Query("insert_one"), []any{p.namespace, lock, s.Queue, id, rec.Name, rec.Key, s.headers, s.body, s.created}
	case rec.Key == "":
		return p.outbox.Query("insert_unkeyed"), []any{s.transport, s.Transport, id, rec.Name, s.headers, s.body, s.created}
	}
	return p.outbox.Query("insert_one"), []any{p.namespace, lock, s.transport, s.Transport, s.buckets, s.bucket, id, rec.Name, rec.Key, s.headers, s.body, s.created}
}

// maxInsertRows and maxInsertBytes bound a statement that inserts many rows.
const maxInsertRows, maxInsertBytes = 1000, 4 << 20

// queueInserts adds the statements that write rows to batch: locks first.
func (db *DB) queueInserts(p *catalog, batch *pgx.Batch, rows []outbox.Row) error {
	all, locks, err := db.prepare(rows)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.Unique != nil {
			query, args := confirmUnique(p, row)
			batch.Queue(query, args...)
		}
	}
	if len(all) == 1 && all[0].Record.Delay == 0 && (all[0].Queue != "" || all[0].Record.Key != "") {
		var lock *int32 // NULL takes none
		if len(locks) > 0 {
			lock = &locks[0]
		}
		query, args := all[0].statement(p, lock)
		batch.Queue(query, args...)
		return nil
	}
	batch.Queue(p.outbox.Query("lock_many"), p.namespace, locks)
	many := map[string]*columns{} // by transport or queue
	for _, s := range all {
		if s.Record.Delay > 0 || s.Queue == "" && s.Record.Key == "" {
			query, args := s.statement(p, nil)
			batch.Queue(query, args...)
			continue
		}
		to := cmp.Or(s.Queue, "\x00"+s.Transport) // which PostgreSQL takes in no name of a queue
		c := many[to]
		if c == nil {
			c = &columns{}
			many[to] = c
		}
		if c.add(s); len(c.ids) == maxInsertRows || c.bytes > maxInsertBytes {
			c.queue(p, batch)
		}
	}
	for _, to := range slices.Sorted(maps.Keys(many)) {
		many[to].queue(p, batch)
	}
	return nil
}

// columns are rows of one queue, or keyed rows of one transport, as arrays.
type columns struct {
	of                   stored // any row
	buckets              []int16
	ids                  [][]byte
	names, keys, headers []string
	bodies               [][]byte
	created              []time.Time
	bytes                int
}

func (c *columns) add(s stored) {
	c.of, c.buckets = s, append(c.buckets, s.bucket)
	c.ids = append(c.ids, s.Record.ID[:])
	c.names, c.keys, c.headers = append(c.names, s.Record.Name), append(c.keys, s.Record.Key), append(c.headers, s.headers)
	c.bodies, c.created = append(c.bodies, s.body), append(c.created, s.created)
	c.bytes += len(s.body) + len(s.headers)
}

// queue adds the statement to batch and begins anew.
func (c *columns) queue(p *catalog, batch *pgx.Batch) {
	switch {
	case len(c.ids) == 0:
	case c.of.Queue != "":
		batch.Queue(p.queue.Query("insert_many"), c.of.Queue, c.ids, c.names, c.keys, c.headers, c.bodies, c.created)
	default:
		batch.Queue(p.outbox.Query("insert_many"), c.of.transport, c.of.Transport, c.of.buckets, c.buckets, c.ids, c.names, c.keys, c.headers, c.bodies, c.created)
	}
	*c = columns{}
}

func nullIf[T any](null bool, v T) *T {
	if null {
		return nil
	}
	return &v
}
