package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// A blockedEntry is an entry that an operator releases.
type blockedEntry struct {
	entry
	name    string // of its transport
	problem string
	parked  bool
	gone    bool // its row is
	buckets int  // their number, by which it has its bucket
}

// Release implements admin.Database.
func (db *DB) Release(ctx context.Context, q admin.BlockedQuery) (n int, err error) {
	if err := db.writer(ctx); err != nil {
		return 0, err
	}
	which := append(twice(q.Transport, q.Key, q.Route), q.Row, q.Row)
	entries, err := query(ctx, db, db.admin.Query("entries"), func(rows *sql.Rows, e *blockedEntry) error {
		return rows.Scan(&e.transport, &e.name, &e.route, &e.key, &e.row, &e.bucket, &e.failures, &e.problem, &e.parked, &e.gone, &e.buckets)
	}, which...)
	parked := map[rowRef][]blockedEntry{} // by bucket and transport
	for _, e := range entries {
		switch {
		case e.parked:
			at := rowRef{e.bucket, int64(e.transport)}
			parked[at] = append(parked[at], e)
		case err == nil && (e.gone || q.SkipHead && e.route == ""):
			if err = db.releaseOne(ctx, e, q); err == nil {
				n++
			}
		}
	}
	if err == nil {
		var due int
		due, err = db.retryNow(ctx, which, q)
		n += due
	}
	for err == nil && len(parked) > 0 {
		for at, keys := range parked {
			some := min(len(keys), releaseKeys)
			if err = db.releaseParked(ctx, keys[:some], q); err != nil {
				break
			}
			n += some
			if parked[at] = keys[some:]; len(keys) == some {
				delete(parked, at)
			}
		}
	}
	if rest := len(entries) - n; err == nil && rest > 0 { // that are due, or that a relay was just trying
		err = db.inTx(ctx, func(tx *sql.Tx) error { return db.released(ctx, tx, q, rest) })
	}
	if err != nil {
		return n, fmt.Errorf("outbox release: %w", translate(err))
	}
	return len(entries), nil
}

// released records that n entries were released in a transaction.
func (db *DB) released(ctx context.Context, tx *sql.Tx, q admin.BlockedQuery, n int) error {
	if n == 0 {
		return nil
	}
	return sqlcore.Audit(ctx, operatorTx{db, tx}, "outbox release", q, n)
}

// releaseWait is how long to wait for entries that a relay is just trying, or whose relay
// has just died.
const releaseWait = time.Second

// releaseKeys is how many parked keys of a bucket are brought back before a key of
// another bucket. Their rows go out before later rows of the bucket, so the next keys
// wait until a relay has published the last batch, for at most releasePause, and then
// twice as long: two thirds of the time are for other keys.
const (
	releaseKeys  = 50
	releasePause = 50 * time.Millisecond
	releasePoll  = 2 * time.Millisecond
)

// published waits until the rows of a bucket up to an id are gone, and then twice as long as
// has passed since start.
func (db *DB) published(ctx context.Context, start time.Time, transport, bucket int16, last int64) error {
	for some, began := true, time.Now(); some && time.Since(began) < releasePause && sleep(ctx, releasePoll); {
		if err := db.pool.QueryRowContext(ctx, db.admin.Query("any_up_to"), transport, bucket, last).Scan(&some); err != nil {
			return err
		}
	}
	sleep(ctx, 2*time.Since(start))
	return ctx.Err()
}

// retryNow has entries tried at once, unless a relay is trying them, and returns how many.
func (db *DB) retryNow(ctx context.Context, which []any, q admin.BlockedQuery) (due int, err error) {
	for start := time.Now(); ; {
		n := 0
		err := db.inTx(ctx, func(tx *sql.Tx) error {
			run := script{}
			err := each(ctx, tx, db.admin.Query("lock_waiting"), func(rows *sql.Rows) error {
				var e entry
				err := rows.Scan(&e.transport, &e.route, &e.key, &e.row)
				run.statements = append(run.statements, statement{text: db.admin.Query("retry_now"), args: e.id()})
				return err
			}, append(slices.Clone(which), releaseBatch)...)
			n = len(run.statements)
			if err == nil {
				err = db.run(ctx, tx, run)
			}
			if err == nil {
				err = db.released(ctx, tx, q, n)
			}
			return err
		})
		if err != nil {
			return due, err
		}
		if due += n; n > 0 {
			continue
		}
		some := false
		if err := each(ctx, db.pool, db.admin.Query("any_waiting"), func(*sql.Rows) error { some = true; return nil }, which...); err != nil {
			return due, err
		}
		if !some || time.Since(start) > releaseWait || !sleep(ctx, lockPause) {
			return due, ctx.Err()
		}
	}
}

// releaseOne removes a retrying entry whose row is gone, or is to be skipped. An entry
// without a row stays while a relay publishes other keys of the bucket: a relay removes
// it.
func (db *DB) releaseOne(ctx context.Context, e blockedEntry, q admin.BlockedQuery) error {
	return db.inTx(ctx, func(tx *sql.Tx) error {
		if err := db.sameBuckets(ctx, tx, e.buckets); err != nil {
			return err
		}
		var state string
		var locked int16
		lock := "lock"
		if e.gone {
			lock = "try"
		}
		err := tx.QueryRowContext(ctx, db.admin.Query(lock+"_entry"), e.id()...).Scan(&state)
		if errors.Is(err, sql.ErrNoRows) || err == nil && state != admin.Retrying { // a relay was quicker
			return nil
		}
		if err != nil {
			return err
		}
		err = tx.QueryRowContext(ctx, db.admin.Query(lock+"_bucket"), e.transport, e.versioned()).Scan(&locked)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		run := script{statements: []statement{{text: db.outbox.Query("bump"), args: []any{e.transport, e.versioned()}}}}
		if !e.gone {
			run.statements = append(run.statements, db.skipping(e)...)
		}
		run.statements = append(run.statements, statement{text: db.outbox.Query("unblock"), args: e.id()})
		if err := db.run(ctx, tx, run); err != nil {
			return err
		}
		return db.released(ctx, tx, q, 1)
	})
}

// skipping returns the statements that move an entry's row to the dead letters.
func (db *DB) skipping(e blockedEntry) []statement {
	if e.bucket == unkeyed {
		return []statement{
			{text: db.outbox.Query("skip_unkeyed"), args: []any{e.failures, e.problem, e.transport, 1, e.row}},
			{text: db.outbox.Query("delete_unkeyed"), args: []any{jsonOf([][2]int64{{1, e.row}}), e.transport}},
		}
	}
	return []statement{
		{text: db.outbox.Query("skip"), args: []any{e.failures, e.problem, e.transport, e.bucket, e.row}},
		{text: db.outbox.Query("delete"), args: []any{jsonOf([][2]int64{{int64(e.bucket), e.row}}), e.transport}},
	}
}

// releaseParked brings the rows of parked keys of one bucket back, in order and in
// batches of a transaction each. The keys stay blocked until the last.
func (db *DB) releaseParked(ctx context.Context, keys []blockedEntry, q admin.BlockedQuery) error {
	transport, bucket := keys[0].transport, keys[0].bucket
	parked := map[string]blockedEntry{}
	var names []string
	after := keys[0].row - 1 // the first row of a key is that of its entry
	for _, e := range keys {
		parked[e.key], names, after = e, append(names, e.key), min(after, e.row-1)
	}
	start, moved := time.Now(), false
	for first, more := true, true; more; first = false {
		next := after
		err := db.inTx(ctx, func(tx *sql.Tx) error {
			if err := db.sameBuckets(ctx, tx, keys[0].buckets); err != nil { // which no rebucket changes from here on
				return err
			}
			var locked int16
			if err := tx.QueryRowContext(ctx, db.admin.Query("lock_bucket"), transport, bucket).Scan(&locked); err != nil {
				return err
			}
			ids, of, err := db.rowsOfKey(ctx, tx, transport, bucket+outbox.ParkedBuckets, after, q.Key, releaseBatch)
			if err != nil {
				return err
			}
			more = len(ids) == releaseBatch
			run := script{}
			if q.SkipHead && first {
				for _, e := range keys {
					run.statements = append(run.statements, db.skipping(e)...) // brought back by an interrupted release
					e.bucket += outbox.ParkedBuckets
					run.statements = append(run.statements, db.skipping(e)...)
				}
			}
			var back []int64
			for i, id := range ids {
				next = id
				if e, ours := parked[of[i]]; ours && !(q.SkipHead && id == e.row) {
					back = append(back, id)
				}
			}
			moved = moved || len(back) > 0
			if len(back) > 0 {
				run.statements = append(run.statements, statement{text: db.outbox.Query("move_rows"), args: []any{jsonIDs(back), transport, bucket + outbox.ParkedBuckets, bucket}})
			}
			if err := db.run(ctx, tx, run); err != nil || more {
				return err
			}
			return db.unblockKeys(ctx, tx, q, keys[0].entry, names)
		})
		if err == nil && !more && moved {
			db.wakes.Hint(keys[0].name)
			err = db.published(ctx, start, transport, bucket, next)
		}
		if err != nil {
			return err
		}
		after = next
	}
	return nil
}

// unblockKeys removes the entries of parked keys of one bucket, whose rows are back.
func (db *DB) unblockKeys(ctx context.Context, tx *sql.Tx, q admin.BlockedQuery, of entry, keys []string) error {
	if _, err := tx.ExecContext(ctx, db.outbox.Query("bump"), of.transport, of.bucket); err != nil {
		return err
	}
	n, err := affected(tx.ExecContext(ctx, fill(db.admin.Query("unblock_keys"), of.transport, literals(keys...)).text))
	if err != nil {
		return err
	}
	return db.released(ctx, tx, q, n)
}
