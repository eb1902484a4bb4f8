package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/headers"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

// readCommitted is for transactions whose later statements must see commits made while
// an earlier one waited, whatever the server's default is.
var readCommitted = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

// inTx runs fn in a transaction of waybill's own, which the server ends when its process is
// silent for Config.IdleTimeout: a frozen one keeps no lock for longer. It refuses a server as
// writer does.
func (db *DB) inTx(ctx context.Context, fn func(tx *sql.Tx) error) error {
	if err := db.writer(ctx); err != nil {
		return err
	}
	pool, err := db.relayPool(ctx)
	if err != nil {
		return err
	}
	return transact(ctx, pool, fn)
}

// transact runs fn in a transaction of a pool or a session.
func transact(ctx context.Context, of interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}, fn func(tx *sql.Tx) error) error {
	tx, err := of.BeginTx(ctx, readCommitted)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fn(tx); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "COMMIT") // Tx.Commit would outlive ctx where the server has vanished
	return err
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
	return db.patiently(func() error {
		s, err := db.inserting(rows)
		if err != nil {
			return err
		}
		return db.run(ctx, tx, s)
	})
}

// patiently runs insert, and again when the number of buckets has changed, which it may while
// a transaction is open, or when the transports have other numbers, as in a database that was
// restored. Only the statement has failed then.
func (db *DB) patiently(insert func() error) error {
	before := db.renewed()
	err := insert()
	if (errors.Is(err, outbox.ErrBucketsChanged) || errors.Is(err, errForeign)) && db.renewed() != before {
		return insert()
	}
	return err
}

// renewed counts the changes of the numbers that statements are made with.
func (db *DB) renewed() int {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.renewals
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
	// The outbox first: a refusal for a changed number of buckets comes before any row
	// is written.
	slices.SortStableFunc(all, func(a, b stored) int { return cmp.Compare(a.table(), b.table()) })
	slices.SortFunc(locks, gate.compare)
	return all, locks, buckets, nil
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
	for _, row := range rows {
		if row.Unique != nil {
			into.statements = append(into.statements, db.confirmUnique(row))
		}
	}
	return into.script, nil
}

// inserts gathers rows of one table into statements of many rows.
type inserts struct {
	script
	named sqlfile.Set
	locks []gate // of one transport, that the first statement takes

	checked map[int16]bool // transports whose number and name were checked

	into string    // the name of next
	next *repeated // nil at the start
}

func (in *inserts) add(s stored) {
	size := len(s.body) + len(s.headers)
	if into := insertInto[s.table()]; into != in.into {
		in.flush()
		in.into, in.next = into, repeating(in.named.Query(into))
	} else if in.next.full(size) {
		in.flush()
	}
	in.next.add(s.Record.Name, size, in.row(s)...)
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

func (in *inserts) flush() {
	if in.next != nil {
		in.statements = append(in.statements, in.next.flush()...)
	}
}
