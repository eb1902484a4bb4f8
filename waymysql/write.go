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
	"github.com/waybill-go/waybill/internal/mutant"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

// AddTransports implements outbox.Writer. It checks the server's settings as well, which
// is not possible inside a transaction of the caller's.
func (db *DB) AddTransports(ctx context.Context, names ...string) error {
	if err := db.writer(ctx); err != nil {
		return err
	}
	known, err := db.readTransports(ctx)
	if err != nil {
		return fmt.Errorf("transports: %w", err)
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := known[name]; return ok })
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names) // two processes insert in one order
	err = db.inTx(ctx, func(tx *sql.Tx) error {
		var buckets int
		if err := tx.QueryRowContext(ctx, db.outbox.Query("buckets_to_add")).Scan(&buckets); err != nil {
			return err
		}
		for _, name := range names {
			if _, err := tx.ExecContext(ctx, db.outbox.Query("add_transport"), []byte(name)); err != nil {
				return err
			}
			if err := db.addBuckets(ctx, tx, name, buckets); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		_, err = db.readTransports(ctx)
	}
	if err != nil {
		return fmt.Errorf("transports: %w", translate(err))
	}
	return nil
}

// addBuckets adds a transport's missing buckets.
func (db *DB) addBuckets(ctx context.Context, tx *sql.Tx, name string, buckets int) error {
	if _, err := tx.ExecContext(ctx, db.outbox.Query("add_buckets"), []byte(name), buckets); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, db.outbox.Query("add_gates"), []byte(gateName(name, buckets)), []byte(name), buckets); err != nil {
		return err
	}
	return db.addSentinels(ctx, tx, name, buckets)
}

// addSentinels adds missing sentinels.
func (db *DB) addSentinels(ctx context.Context, to executor, name string, buckets int) error {
	if _, err := to.ExecContext(ctx, db.outbox.Query("add_sentinels"), []byte(name), buckets); err != nil {
		return err
	}
	_, err := to.ExecContext(ctx, db.outbox.Query("add_unkeyed_sentinels"), []byte(name))
	return err
}

// readCommitted is for transactions whose later statements must see commits made while
// an earlier one waited, whatever the server's default is.
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

// readTransports reads the numbers of all transports that have buckets.
func (db *DB) readTransports(ctx context.Context) (map[string]int16, error) {
	found := map[string]int16{}
	err := each(ctx, db.pool, db.outbox.Query("transports"), func(rows *sql.Rows) error {
		var id int16
		var name string
		var buckets int
		err := rows.Scan(&id, &name, &buckets)
		if buckets > 0 {
			found[name] = id
		}
		return err
	})
	if err != nil {
		return nil, translate(err)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.transports = found
	return found, nil
}

// transport returns the number of a transport, or 0 when there is none.
func (db *DB) transport(ctx context.Context, name string) (int16, error) {
	db.mu.Lock()
	id := db.transports[name]
	db.mu.Unlock()
	if id == 0 {
		known, err := db.readTransports(ctx)
		return known[name], err
	}
	return id, nil
}

// Write implements outbox.Writer. In a transaction of the caller's own an error
// must end the transaction: the server may have rolled it back already. The pool is not
// used there: the caller may have its last connection.
func (db *DB) Write(ctx context.Context, tx *sql.Tx, rows ...outbox.Row) error {
	u, err := db.unitOf(tx)
	if err != nil {
		return err
	}
	if u != nil {
		return u.Add(rows)
	}
	if !db.checked() {
		return errors.New("waymysql: AddTransports comes before the first Write")
	}
	return db.patiently(func() error { return db.insert(ctx, tx, rows) })
}

// patiently runs insert, and again when the number of buckets has changed, which
// it may while a transaction is open. Only the statement has failed then.
func (db *DB) patiently(insert func() error) error {
	before := db.bucketCount()
	err := insert()
	if errors.Is(err, outbox.ErrBucketsChanged) && db.bucketCount() != before {
		return insert()
	}
	return err
}

// A gate is a bucket's dispatch lock. Transport 0 is that of all queues.
type gate struct {
	transport, bucket int16
	name              string // of its row; not part of its order
}

// gateName is the name of a transport's gates. It changes with the number of buckets: a
// process that knows another number finds no gate, and cannot take the wrong one.
func gateName(transport string, buckets int) string {
	if buckets == outbox.DefaultBuckets {
		return transport
	}
	return fmt.Sprintf("%s/%d", transport, buckets)
}

func (g gate) compare(h gate) int {
	if g.transport != h.transport {
		return int(g.transport) - int(h.transport)
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

// table orders rows by where they go: outbox with and without a key, queues, delayed.
func (s stored) table() int {
	switch {
	case s.Record.Delay > 0:
		return 3
	case s.Queue != "":
		return 2
	case s.Record.Key == "":
		return 1
	}
	return 0
}

// prepare encodes rows, and returns the gates they need in ascending order.
func (db *DB) prepare(rows []outbox.Row) (all []stored, locks []gate, buckets int, err error) {
	db.mu.Lock()
	transports := db.transports
	buckets = db.buckets
	db.mu.Unlock()
	all = make([]stored, len(rows))
	for i, row := range rows {
		s := stored{Row: row, body: row.Record.Body, created: row.Record.DispatchedAt}
		s.bucket = unkeyed
		if s.body == nil {
			s.body = []byte{} // not NULL
		}
		if row.Queue == "" {
			id, ok := transports[row.Transport]
			if !ok {
				return nil, nil, 0, fmt.Errorf("unknown transport %q", row.Transport)
			}
			s.gate.transport, s.gate.name = id, gateName(row.Transport, buckets)
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
			if row.Record.Delay == 0 && !slices.Contains(locks, s.gate) {
				locks = append(locks, s.gate)
			}
		}
		all[i] = s
	}
	if mutant.Active(mutant.NoDispatchLock) {
		locks = nil
	}
	// The outbox first: a refusal for a changed number of buckets comes before any row
	// is written.
	slices.SortStableFunc(all, func(a, b stored) int { return cmp.Compare(a.table(), b.table()) })
	slices.SortFunc(locks, gate.compare)
	return all, locks, buckets, nil
}

// A statement that inserts many has at most so many rows and bytes. The server
// takes packets of 16 MiB unless it is told otherwise, and escaping may double
// the size.
const maxInsertRows, maxInsertBytes = 1000, 4 << 20

// insert writes rows under their gates.
func (db *DB) insert(ctx context.Context, tx *sql.Tx, rows []outbox.Row) error {
	s, err := db.inserting(rows)
	if err != nil {
		return err
	}
	return db.run(ctx, tx, s)
}

// inserting returns the script that writes rows under their gates. Rows of one transport
// take their gates in the statement that gives the first of them its id; for several
// transports, or queues, all gates are locked first. They are always locked in
// ascending order: units of work cannot deadlock with each other.
func (db *DB) inserting(rows []outbox.Row) (script, error) {
	all, locks, buckets, err := db.prepare(rows)
	if err != nil {
		return script{}, err
	}
	into := inserts{named: db.dispatching, script: script{buckets: buckets}, checked: map[int16]bool{}}
	if len(locks) > 0 && together(locks) {
		into.locks = locks
	} else if len(locks) > 0 {
		into.statements = append(into.statements, db.locking(locks))
		for _, g := range locks {
			into.checked[g.transport] = true
		}
	}
	for _, s := range all {
		into.add(s)
	}
	into.flush()
	return into.script, nil
}

// together reports whether all locks are of one transport.
func together(locks []gate) bool {
	return locks[0].transport > 0 && locks[0].transport == locks[len(locks)-1].transport
}

// lockGates locks gates, of which there are so many buckets.
func (db *DB) lockGates(ctx context.Context, tx *sql.Tx, locks []gate, buckets int) error {
	return db.run(ctx, tx, script{buckets, []statement{db.locking(locks)}})
}

// locking returns the condition for gates, by transport.
func (db *DB) locking(locks []gate) statement {
	var of []clause
	for i := 0; i < len(locks); {
		n := 1
		for i+n < len(locks) && locks[i+n].transport == locks[i].transport {
			n++
		}
		of = append(of, gatesOf(db.dispatching, locks[i:i+n]))
		i += n
	}
	all := or(of)
	return statement{gates: len(locks), text: all.text, args: all.args}
}

// noGate says why no gate was found for so many buckets: their number has changed, or
// this is not the outbox's database.
func (db *DB) noGate(ctx context.Context, tx *sql.Tx, buckets int) error {
	if err := db.sameBuckets(ctx, tx, buckets); err != nil {
		return err
	}
	return errForeign
}

// sameBuckets returns outbox.ErrBucketsChanged if the number of buckets has changed. It
// asks in the transaction, and does not wait: the number is locked while it changes.
func (db *DB) sameBuckets(ctx context.Context, tx *sql.Tx, buckets int) error {
	share := "share_buckets"
	if db.isMariaDB() {
		share = "share_buckets_mariadb"
	}
	var n int
	switch err := tx.QueryRowContext(ctx, db.dispatching.Query(share)).Scan(&n); {
	case errors.Is(err, sql.ErrNoRows):
		return outbox.ErrBucketsChanged
	case is(err, errNoTable):
		return errForeign
	case err != nil:
		return fmt.Errorf("number of buckets: %w", translate(err))
	case n != buckets:
		db.setBuckets(n)
		return outbox.ErrBucketsChanged
	}
	return nil
}

// inserts gathers rows of one table into statements of many rows.
type inserts struct {
	script
	named sqlfile.Set
	locks []gate // of one transport, that the first statement takes

	checked map[int16]bool // transports whose number and name were checked

	into string // the name of the statement
	sql  strings.Builder
	rows int
	next statement
}

func (in *inserts) add(s stored) {
	if in.rows == maxInsertRows || in.next.bytes > maxInsertBytes {
		in.flush()
	}
	into := insertInto[s.table()]
	head, row, _ := strings.Cut(in.named.Query(into), "VALUES ")
	if into != in.into {
		in.flush()
		in.into, in.next.inserts = into, s.Record.Name
		in.sql.WriteString(head + "VALUES ")
	}
	if in.rows > 0 {
		in.sql.WriteByte(',')
	}
	values := fill(row, in.row(s)...)
	in.sql.WriteString(values.text)
	in.next.args = append(in.next.args, values.args...)
	in.next.bytes += len(s.body) + len(s.headers)
	in.rows++
}

// insertInto names the statements by table.
var insertInto = [...]string{"insert_keyed", "insert_unkeyed", "insert_queued", "insert_delayed"}

// row returns the values of a row. Ids and headers are literals. Names and keys are
// bytes, whatever the character set of the connection is.
func (in *inserts) row(s stored) (values []any) {
	switch s.table() {
	case 3:
		values = []any{stamp(s.created.Add(s.Record.Delay))}
		if s.Queue != "" {
			values = append(values, nil, []byte(s.Queue))
		} else {
			values = append(values, in.transport(s), nil)
		}
	case 2:
		values = []any{[]byte(s.Queue)}
	case 1:
		values = []any{in.transport(s)}
	default:
		values = []any{in.transport(s), s.bucket}
	}
	values = append(values, literals(string(s.Record.ID[:])), []byte(s.Record.Name))
	if s.table() != 1 {
		values = append(values, []byte(s.Record.Key))
	}
	return append(values, literals(s.headers), s.body, stamp(s.created))
}

// transport returns the number of the row's transport. The first row takes it from rows
// of the gates that it locks, or of the transports: the server reads these before it
// gives ids to all rows of the statement. NULL, which no column takes, stands for no such
// row.
func (in *inserts) transport(s stored) any {
	id := s.gate.transport
	if in.checked[id] {
		return id
	}
	in.checked[id] = true
	switch n := len(in.locks); {
	case s.table() > 0 || n == 0:
		return fill(in.named.Query("transport"), id, []byte(s.Transport))
	case n == 1:
		return fill(in.named.Query("transport_of_gate"), id, in.locks[0].bucket, []byte(s.gate.name))
	default:
		return fill(in.named.Query("transport_of_gates"), n, id, gatesOf(in.named, in.locks))
	}
}

// gatesOf is the condition for gates of one transport.
func gatesOf(named sqlfile.Set, locks []gate) clause {
	of := make([]int16, len(locks))
	for i, g := range locks {
		of[i] = g.bucket
	}
	return fill(named.Query("gates_of_transport"), locks[0].transport, of[0], of[len(of)-1], numbers(of), []byte(locks[0].name))
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
