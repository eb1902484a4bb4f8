package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/outbox"
)

// AddTransports implements outbox.Writer.
func (db *DB) AddTransports(ctx context.Context, names ...string) error {
	if err := db.ready(ctx); err != nil {
		return err
	}
	// Most of the time they are there, and a process that may not write may
	// still read.
	known, err := db.readLanes(ctx)
	if err != nil {
		return fmt.Errorf("transports: %w", err)
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := known[name]; return ok })
	if len(names) == 0 {
		return nil
	}
	if err := db.writer(ctx); err != nil {
		return err
	}
	slices.Sort(names) // two processes insert in one order
	err = db.inTx(ctx, func(tx *sql.Tx) error {
		for _, name := range names {
			if _, err := tx.ExecContext(ctx, db.outbox.Query("add_lane"), []byte(name)); err != nil {
				return err
			}
			buckets := db.bucketCount()
			if _, err := tx.ExecContext(ctx, db.outbox.Query("add_buckets"), buckets, []byte(name)); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, db.outbox.Query("add_gates"), buckets, []byte(gateName(name, buckets)), []byte(name)); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		_, err = db.readLanes(ctx)
	}
	if err != nil {
		return fmt.Errorf("transports: %w", translate(err))
	}
	return nil
}

// readCommitted is for transactions whose later statements must see what was
// committed while an earlier one waited, whatever the server's default is.
var readCommitted = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

// inTx runs fn in a transaction of waybill's own.
func (db *DB) inTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := db.pool.BeginTx(ctx, readCommitted)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// readLanes reads the numbers of all transports.
func (db *DB) readLanes(ctx context.Context) (map[string]int16, error) {
	rows, err := db.pool.QueryContext(ctx, db.outbox.Query("lanes"))
	if err != nil {
		return nil, translate(err)
	}
	defer rows.Close()
	found := map[string]int16{}
	for rows.Next() {
		var id int16
		var name string
		if err := rows.Scan(&id, &name); err != nil {
			return nil, err
		}
		found[name] = id
	}
	if err := rows.Err(); err != nil {
		return nil, translate(err)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.lanes = found
	return found, nil
}

// Write implements outbox.Writer. In a transaction of the caller's own an error
// must end the transaction: the server may have rolled it back already.
func (db *DB) Write(ctx context.Context, tx *sql.Tx, rows ...outbox.Row) error {
	u, err := db.unitOf(tx)
	if err != nil {
		return err
	}
	if u != nil {
		return u.add(rows)
	}
	if err := db.writer(ctx); err != nil {
		return err
	}
	return db.patiently(ctx, func() error { return db.insert(ctx, tx, rows) })
}

// patiently runs insert, and again when the number of buckets has changed, which
// it may while a transaction is open. Only the statement has failed then.
func (db *DB) patiently(ctx context.Context, insert func() error) error {
	err := insert()
	if !errors.Is(err, outbox.ErrBucketsChanged) {
		return err
	}
	if err := db.ready(ctx); err != nil {
		return err
	}
	return insert()
}

// A gate is a bucket's dispatch lock. Lane 0 is that of all queues.
type gate struct {
	lane, bucket int16
	name         string // of its row; not part of its order
}

// gateName is the name of a lane's gates. It changes with the number of buckets:
// who knows another number finds no gate, and cannot take the wrong one.
func gateName(lane string, buckets int) string {
	if buckets == outbox.DefaultBuckets {
		return lane
	}
	return fmt.Sprintf("%s/%d", lane, buckets)
}

func (g gate) compare(h gate) int {
	if g.lane != h.lane {
		return int(g.lane) - int(h.lane)
	}
	return int(g.bucket) - int(h.bucket)
}

// stored is a row as it is written.
type stored struct {
	outbox.Row
	gate
	headers string
	body    []byte
	created time.Time
}

// table orders rows by where they go: outbox, queues, delayed.
func (s stored) table() int {
	switch {
	case s.Record.Delay > 0:
		return 2
	case s.Queue != "":
		return 1
	}
	return 0
}

// prepare encodes rows, and returns the gates they need in ascending order.
func (db *DB) prepare(rows []outbox.Row) (all []stored, locks []gate, buckets int, err error) {
	db.mu.Lock()
	lanes := db.lanes
	buckets = db.buckets
	db.mu.Unlock()
	all = make([]stored, len(rows))
	for i, row := range rows {
		s := stored{Row: row, body: row.Record.Body, created: row.Record.DispatchedAt}
		s.bucket = lane.Unkeyed
		if s.body == nil {
			s.body = []byte{} // not NULL
		}
		if row.Queue == "" {
			id, ok := lanes[row.Transport]
			if !ok {
				return nil, nil, 0, fmt.Errorf("unknown transport %q", row.Transport)
			}
			s.gate.lane, s.gate.name = id, gateName(row.Transport, buckets)
		}
		if s.headers, err = headers.Encode(row.Record); err != nil {
			return nil, nil, 0, err
		}
		if row.Record.Key != "" {
			n := buckets
			if row.Queue != "" {
				n = queueBuckets
			}
			s.bucket = int16(outbox.Bucket(row.Record.Key, n))
			// A delayed message is locked and ordered when it is due.
			if row.Unserialized {
				if row.Queue == "" {
					s.bucket += outbox.Unserialized
				}
			} else if row.Record.Delay == 0 && !slices.Contains(locks, s.gate) {
				locks = append(locks, s.gate)
			}
		}
		all[i] = s
	}
	if mutant.Active(mutant.NoDispatchLock) {
		locks = nil
	}
	// The outbox first: what is refused for other buckets is refused before anything
	// was written.
	slices.SortStableFunc(all, func(a, b stored) int { return cmp.Compare(a.table(), b.table()) })
	slices.SortFunc(locks, gate.compare)
	return all, locks, buckets, nil
}

// A statement that inserts many has at most so many rows and bytes. The server
// takes packets of 16 MiB unless it is told otherwise, and escaping may double
// what is sent.
const maxInsertRows, maxInsertBytes = 1000, 4 << 20

// insert writes rows under their gates.
func (db *DB) insert(ctx context.Context, tx *sql.Tx, rows []outbox.Row) error {
	s, err := db.inserting(rows)
	if err != nil {
		return err
	}
	return db.run(ctx, tx, s)
}

// inserting returns what writes rows under their gates. Rows of one lane of the
// outbox take theirs in the statement that gives the first of them its id; for
// several lanes, or queues, all gates are locked first. They are always locked in
// ascending order: units of work cannot deadlock with each other.
func (db *DB) inserting(rows []outbox.Row) (script, error) {
	all, locks, buckets, err := db.prepare(rows)
	if err != nil {
		return script{}, err
	}
	into := inserts{tables: qualified(db.schema, db.prefix), script: script{buckets: buckets}}
	if together(all) {
		into.locks = locks
	} else if len(locks) > 0 {
		into.statements = append(into.statements, db.locking(locks))
		into.checked = true
	}
	for _, s := range all {
		into.free = into.free || lane.Unserialized(s.bucket)
		into.add(s)
	}
	into.flush()
	return into.script, nil
}

// together reports whether all rows go into the outbox, and to one transport.
func together(all []stored) bool {
	return !slices.ContainsFunc(all, func(s stored) bool {
		return s.Queue != "" || s.Record.Delay > 0 || s.gate.lane != all[0].gate.lane
	})
}

// lockGates locks gates, of which there are so many buckets.
func (db *DB) lockGates(ctx context.Context, tx *sql.Tx, locks []gate, buckets int) error {
	return db.run(ctx, tx, script{buckets, []statement{db.locking(locks)}})
}

// locking returns what locks in ascending order, because that is the order of the
// index.
func (db *DB) locking(locks []gate) statement {
	s := statement{gates: len(locks)}
	var b strings.Builder
	fmt.Fprintf(&b, " FROM %soutbox_gate AS g FORCE INDEX (PRIMARY) WHERE", qualified(db.schema, db.prefix))
	for i := 0; i < len(locks); {
		n := 1
		for i+n < len(locks) && locks[i+n].lane == locks[i].lane {
			n++
		}
		if i > 0 {
			b.WriteString(" OR")
		}
		fmt.Fprintf(&b, " %s AND g.name = ?", ofLane(locks[i:i+n]))
		s.args = append(s.args, []byte(locks[i].name))
		i += n
	}
	b.WriteString(" FOR UPDATE")
	s.text = b.String()
	return s
}

// noGate says why no gate was found for so many buckets: there are other buckets
// by now, or this is not the outbox's database. It looks from outside of the
// transaction, whose snapshot may be older, and which must not lock more.
func (db *DB) noGate(ctx context.Context, buckets int) error {
	if err := db.sameBuckets(ctx, buckets); err != nil {
		return err
	}
	return errForeign
}

// sameBuckets returns outbox.ErrBucketsChanged where there are other buckets by now.
func (db *DB) sameBuckets(ctx context.Context, buckets int) error {
	var value string
	if err := db.pool.QueryRowContext(ctx, db.rebucketing.Query("recorded")).Scan(&value); err != nil {
		return fmt.Errorf("number of buckets: %w", translate(err))
	}
	if value != fmt.Sprint(buckets) {
		db.lookAgain()
		return outbox.ErrBucketsChanged
	}
	return nil
}

// inserts gathers rows of one table into statements of many rows.
type inserts struct {
	script
	tables string
	locks  []gate // of one lane, that the first statement takes

	checked bool // the gates are there
	free    bool // there are keys that take none

	into string // the table, and its columns
	sql  strings.Builder
	rows int
	next statement
}

func (in *inserts) add(s stored) {
	if in.rows == maxInsertRows || in.next.bytes > maxInsertBytes {
		in.flush()
	}
	into, row, args := in.row(s)
	if into != in.into {
		in.flush()
		in.into, in.next.inserts = into, s.Record.Name
		in.sql.WriteString(into)
	}
	if in.rows > 0 {
		in.sql.WriteByte(',')
	}
	in.sql.WriteString(row)
	in.next.args = append(in.next.args, args...)
	in.next.bytes += len(s.body) + len(s.headers)
	in.rows++
}

// message are the values of a message's own columns.
const message = "?,?,?,CONVERT(CAST(? AS BINARY) USING utf8mb4),?,?"

// row returns the beginning of the statement for s, its row and the arguments.
func (in *inserts) row(s stored) (into, row string, args []any) {
	// Bytes, whatever the character set of the connection is.
	args = []any{s.Record.ID[:], []byte(s.Record.Name), []byte(s.Record.Key), []byte(s.headers), s.body, stamp(s.created)}
	switch {
	case s.Record.Delay > 0:
		var to, queue any
		if s.Queue != "" {
			queue = []byte(s.Queue)
		} else {
			to = s.lane
		}
		return "INSERT INTO " + in.tables + "delayed (due_at, lane, queue, bucket, message_id, message_name, partition_key, headers, body, created_at) VALUES ",
			"(?,?,?,?," + message + ")", append([]any{stamp(s.created.Add(s.Record.Delay)), to, queue, s.bucket}, args...)
	case s.Queue != "":
		return "INSERT INTO " + in.tables + "queue (queue, message_id, message_name, partition_key, headers, body, created_at) VALUES ",
			"(?," + message + ")", append([]any{[]byte(s.Queue)}, args...)
	}
	into = "INSERT INTO " + in.tables + "outbox (lane, bucket, message_id, message_name, partition_key, headers, body, created_at) VALUES "
	if in.checked {
		return into, fmt.Sprintf("(%d,%d,%s)", s.gate.lane, s.bucket, message), args
	}
	// The first row takes its lane from a gate's row. The server reads that before
	// it gives ids to all rows of the statement. NULL, which no column takes, says
	// that there is no such gate.
	in.checked = true
	of := fmt.Sprintf("SELECT g.lane FROM %soutbox_gate AS g WHERE g.lane = %d AND g.name = ? AND g.bucket = %d", in.tables, s.gate.lane, lane.Unkeyed)
	switch n := len(in.locks); n {
	case 0:
		if in.free { // the number of buckets must stay what it is
			of += " LOCK IN SHARE MODE"
		}
	case 1:
		of = fmt.Sprintf("SELECT g.lane FROM %soutbox_gate AS g WHERE g.lane = %d AND g.name = ? AND g.bucket = %d FOR UPDATE", in.tables, s.gate.lane, in.locks[0].bucket)
	default:
		of = fmt.Sprintf("SELECT CASE WHEN COUNT(*) = %d THEN %d END FROM %soutbox_gate AS g FORCE INDEX (PRIMARY) WHERE g.name = ? AND %s FOR UPDATE", n, s.gate.lane, in.tables, ofLane(in.locks))
	}
	return into, fmt.Sprintf("((%s),%d,%s)", of, s.bucket, message), append([]any{[]byte(s.gate.name)}, args...)
}

// ofLane is the condition for gates of one lane. The bounds make the optimizer
// prefer its range to all gates of the lane; it is read in ascending order.
func ofLane(locks []gate) string {
	of := make([]int16, len(locks))
	for i, g := range locks {
		of[i] = g.bucket
	}
	return fmt.Sprintf("g.lane = %d AND g.bucket BETWEEN %d AND %d AND g.bucket IN (%s)", locks[0].lane, of[0], of[len(of)-1], join(of))
}

func (in *inserts) flush() {
	if in.rows == 0 {
		return
	}
	in.next.text = in.sql.String()
	in.statements = append(in.statements, in.next)
	in.sql.Reset()
	in.into, in.next, in.rows = "", statement{}, 0
}
