package waymysql

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// A script is statements that run in one order, in one transaction. Statements that
// lock gates or insert hold for so many buckets.
type script struct {
	buckets    int
	statements []statement
}

// A statement is one of a script. One that locks gates is the condition for them.
type statement struct {
	text    string
	args    []any
	gates   int                        // that it locks
	inserts string                     // the name of the first message that it inserts
	bytes   int                        // that it inserts
	scan    func(rows *sql.Rows) error // reads a row that it returns; nil if it returns none
}

// maxBlockBytes bounds the inserted bytes of one round trip: more is slow for other
// reasons. A packet of the server has at least twice as much room, for escapes.
const maxBlockBytes = 256 << 10

// blocks cuts a script into round trips: of one statement, or on MariaDB of several
// as a compound one. MySQL has none outside of procedures.
func (db *DB) blocks(all []statement) (blocks [][]statement) {
	compound, limit := db.isMariaDB(), maxBlockBytes
	if most := db.packet; most > 0 { // beyond it the driver would prepare, which the server does for no compound
		limit = min(limit, most/4)
	}
	bytes := 0
	for _, s := range all {
		if bytes += s.bytes; len(blocks) == 0 || !compound || bytes > limit {
			blocks, bytes = append(blocks, nil), s.bytes
		}
		blocks[len(blocks)-1] = append(blocks[len(blocks)-1], s)
	}
	return blocks
}

// run executes a script, and translates its error.
func (db *DB) run(ctx context.Context, tx executor, s script) error {
	for _, block := range db.blocks(s.statements) {
		if err := db.execute(ctx, tx, block); err != nil {
			return db.explain(ctx, tx, err, s.buckets, block)
		}
	}
	return nil
}

// errNoGate says that fewer gates were locked than should be.
var errNoGate = errors.New("no gate")

// execute runs a block by one round trip. In a compound statement the first error
// is the last thing that happens.
func (db *DB) execute(ctx context.Context, tx executor, block []statement) error {
	if first := block[0]; len(block) == 1 {
		if first.scan != nil {
			return each(ctx, tx, first.text, first.scan, first.args...)
		}
		if first.gates == 0 {
			_, err := tx.ExecContext(ctx, first.text, first.args...)
			return err
		}
		locked := 0
		lock := fill(db.dispatching.Query("lock_gates"), clause{first.text, first.args})
		err := tx.QueryRowContext(ctx, lock.text, lock.args...).Scan(&locked)
		if err == nil && locked != first.gates {
			return errNoGate
		}
		return err
	}
	var b strings.Builder
	var args []any
	b.WriteString("BEGIN NOT ATOMIC ")
	for _, s := range block {
		if s.gates > 0 {
			lock := fill(db.dispatching.Query("lock_gates_in_block"), clause{text: s.text})
			fmt.Fprintf(&b, "%s; IF @waybill_gates <> %d THEN SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = %d; END IF; ", lock.text, s.gates, errNullColumn)
		} else {
			b.WriteString(s.text + "; ")
		}
		args = append(args, s.args...)
	}
	b.WriteString("END")
	return results(ctx, tx, b.String(), block, args)
}

// results runs a compound statement, and reads the results of its statements.
func results(ctx context.Context, tx executor, text string, block []statement, args []any) error {
	returning := slices.DeleteFunc(slices.Clone(block), func(s statement) bool { return s.scan == nil })
	if len(returning) == 0 {
		_, err := tx.ExecContext(ctx, text, args...)
		return err
	}
	rows, err := tx.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for i, s := range returning {
		if i > 0 && !rows.NextResultSet() {
			return cmp.Or(rows.Err(), errResults)
		}
		for rows.Next() {
			if err := s.scan(rows); err != nil {
				return err
			}
		}
	}
	if rows.NextResultSet() { // which waits for the statements behind the last that returns rows
		return errResults
	}
	return rows.Err()
}

var errResults = errors.New("waymysql: a compound statement has another number of results than it should")

// explain translates the error of a block.
func (db *DB) explain(ctx context.Context, tx executor, err error, buckets int, block []statement) error {
	what := ""
	for _, s := range block {
		if s.inserts != "" {
			what = "insert " + s.inserts
			break
		}
		if s.gates > 0 {
			what = "dispatch lock"
		}
	}
	switch {
	case what == "":
		return translate(err)
	case err == errNoGate, is(err, errNullColumn), is(err, errCheck), is(err, errCheckMariaDB): // the last where sql_mode is not strict
		return db.noGate(ctx, tx, buckets)
	case is(err, errNoTable):
		return errForeign
	case errors.Is(err, mysql.ErrPktTooLarge), is(err, errPacket):
	case db.exceedsPacket(err, block):
		err = &mysql.MySQLError{Number: errPacket, SQLState: [5]byte([]byte("08S01")), Message: err.Error()}
	default:
		return fmt.Errorf("%s: %w", what, translate(err))
	}
	return fmt.Errorf("%s: the body is larger than the server's max_allowed_packet allows: %w", what, translate(err))
}

// exceedsPacket reports whether a connection was lost because the server takes no packet of
// the size of block. It closes the connection without reading the rest, and its error
// may be lost with that; the message would be tried forever, as in an outage.
func (db *DB) exceedsPacket(err error, block []statement) bool {
	size := 0
	for _, s := range block {
		size += len(s.text)
		for _, arg := range s.args {
			if b, ok := arg.([]byte); ok {
				size += len(b)
				for _, c := range []byte("\x00\n\r\x1a'\"\\") { // which are escaped
					size += bytes.Count(b, []byte{c})
				}
			}
		}
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	return size > maxBlockBytes && 0 < db.maxPacket && db.maxPacket <= size && unavailable(err)
}
