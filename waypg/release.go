package waypg

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// releaseBatch and releaseKeys bound the rows and the parked keys that one
// transaction brings back. These rows precede newer ones of their bucket, so the
// next batch of the bucket waits until a relay has published them, for at most
// releasePause, and then twice as long: two thirds of the time are for other keys.
const (
	releaseBatch = 500
	releaseKeys  = 50
	releasePause = 50 * time.Millisecond
	releasePoll  = 2 * time.Millisecond
)

// Release implements admin.Database.
func (db *DB) Release(ctx context.Context, q admin.BlockedQuery) (n int, err error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return 0, err
	}
	r := release{db: db, at: p, query: []any{q.Transport, q.Key, q.Route, q.Row}, of: q}
	if q.SkipHead {
		err = r.skipHeads(ctx)
	}
	if err == nil {
		err = r.retrying(ctx)
	}
	if err == nil {
		err = r.parked(ctx)
	}
	if err != nil {
		return r.n, fmt.Errorf("outbox release: %w", translate(err))
	}
	return r.n, nil
}

// A release is the state of one Release call.
type release struct {
	db    *DB
	at    *catalog
	query []any // selects entries
	of    admin.BlockedQuery
	began time.Time // by the database's clock
	n     int       // entries released so far
}

// An entryRow is an entry as the statements of a release return it.
type entryRow struct {
	Route, Key string
	Row        int64
	Bucket     int16
	Transport  int16
}

// skipHeads moves the refused messages to the dead letters, and unblocks keys that
// are not parked.
func (r *release) skipHeads(ctx context.Context) error {
	for _, state := range []string{admin.Retrying, admin.Parked} {
		parked := state == admin.Parked
		err := r.each(ctx, "heads", append(r.query[:4:4], state), !parked, func(tx pgx.Tx, e entryRow) error {
			buckets := []int16{e.Bucket}
			if parked { // a release that was interrupted may have brought it back
				buckets = append(buckets, e.Bucket+outbox.ParkedBuckets)
			} else {
				r.n++
			}
			for _, bucket := range buckets {
				if _, err := tx.Exec(ctx, r.at.settle.Query("skip"), e.Transport, bucket, e.Row, 0, ""); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// retrying removes entries without a message, and makes the rest due.
func (r *release) retrying(ctx context.Context) error {
	err := r.each(ctx, "stale", r.query, true, func(pgx.Tx, entryRow) error { r.n++; return nil })
	if err != nil {
		return err
	}
	var due int
	err = r.db.inTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, r.at.settle.Query("due_now"), r.query...).Scan(&due); err != nil {
			return err
		}
		return r.audit(ctx, tx, due)
	})
	r.n += due
	return err
}

// audit records that n entries were released in a transaction.
func (r *release) audit(ctx context.Context, tx pgx.Tx, n int) error {
	if n == 0 {
		return nil
	}
	return sqlcore.Audit(ctx, operatorTx{r.db, r.at, tx}, "outbox release", r.of, n)
}

// each calls fn for the entries that a statement selects, in batches under the locks
// that a settle of Retries takes, and in its order: entries, buckets, transport.
func (r *release) each(ctx context.Context, query string, args []any, remove bool, fn func(pgx.Tx, entryRow) error) error {
	for last, more := (entryRow{}), true; more; {
		err := r.db.inTx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, r.at.settle.Query("keep_buckets")); err != nil {
				return err
			}
			rows, err := tx.Query(ctx, r.at.settle.Query(query), append(args[:len(args):len(args)], last.Transport, last.Route, last.Key, last.Row, entryBatch)...)
			if err != nil {
				return err
			}
			found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[entryRow])
			if more = len(found) == entryBatch; err != nil || len(found) == 0 {
				return err
			}
			last = found[len(found)-1]
			if err := r.change(ctx, tx, found, remove, fn); err != nil || !remove {
				return err // a parked key is on record at its end
			}
			return r.audit(ctx, tx, len(found))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// entryBatch is how many entries one transaction of a release changes.
const entryBatch = 500

func (r *release) change(ctx context.Context, tx pgx.Tx, found []entryRow, remove bool, fn func(pgx.Tx, entryRow) error) error {
	of := map[int16]*settlement{} // by transport
	for _, e := range found {
		if of[e.Transport] == nil {
			of[e.Transport] = &settlement{}
		}
		of[e.Transport].unblock(entry{e.Route, e.Key, e.Row, e.Bucket})
	}
	batch, sql := &pgx.Batch{}, r.at.settle
	for _, transport := range slices.Sorted(maps.Keys(of)) {
		batch.Queue(sql.Query("bump_buckets"), transport, of[transport].buckets)
		if of[transport].routes {
			batch.Queue(sql.Query("bump_routes"), transport)
		}
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	for _, e := range found {
		if err := fn(tx, e); err != nil {
			return err
		}
	}
	for transport, s := range of {
		if !remove {
			continue
		}
		if _, err := tx.Exec(ctx, sql.Query("unblock"), transport, s.freed.routes, s.freed.keys, s.freed.rows); err != nil {
			return err
		}
	}
	return nil
}

// parked brings the rows of parked keys back, bucket by bucket and in batches.
// Newer rows of a key wait until its last row is back.
func (r *release) parked(ctx context.Context) error {
	if err := r.db.pool.QueryRow(ctx, r.at.settle.Query("now")).Scan(&r.began); err != nil {
		return err
	}
	for { // a rebucket may give the keys that are left other buckets
		rows, err := r.db.pool.Query(ctx, r.at.settle.Query("parked_buckets"), append(r.query[:4:4], r.began)...)
		if err != nil {
			return err
		}
		type bucketRow struct {
			Transport, Bucket int16
			Name              string // of the transport
		}
		buckets, err := pgx.CollectRows(rows, pgx.RowToStructByPos[bucketRow])
		if err != nil || len(buckets) == 0 {
			return err
		}
		for _, b := range buckets {
			var last int64
			start := time.Now()
			err := r.db.inTx(ctx, func(tx pgx.Tx) (err error) {
				last, err = r.bringBack(ctx, tx, b.Transport, b.Bucket)
				return err
			})
			if err == nil && last > 0 {
				r.db.hint(b.Name)
				err = r.published(ctx, start, b.Transport, b.Bucket, last)
			}
			if err != nil {
				return err
			}
		}
	}
}

// published waits until the rows of a bucket up to an id are gone, and then twice as long as
// has passed since start.
func (r *release) published(ctx context.Context, start time.Time, transport, bucket int16, last int64) error {
	for some, began := true, time.Now(); some && time.Since(began) < releasePause && sleep(ctx, releasePoll); {
		if err := r.db.pool.QueryRow(ctx, r.at.settle.Query("any_up_to"), transport, bucket, last).Scan(&some); err != nil {
			return err
		}
	}
	sleep(ctx, 2*time.Since(start))
	return ctx.Err()
}

// bringBack brings a batch of rows of a bucket back, and returns its last id, or 0
// if no key is left that was parked before the release began.
func (r *release) bringBack(ctx context.Context, tx pgx.Tx, transport, bucket int16) (last int64, err error) {
	sql := r.at.settle
	if _, err := tx.Exec(ctx, sql.Query("keep_buckets")); err != nil {
		return 0, err
	}
	if _, err := tx.Exec(ctx, sql.Query("bump_buckets"), transport, []int16{bucket}); err != nil {
		return 0, err
	}
	rows, err := tx.Query(ctx, sql.Query("releasable"), transport, bucket, r.of.Key, r.began, releaseKeys)
	if err != nil {
		return 0, err
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	if err := tx.QueryRow(ctx, sql.Query("bring_back"), transport, bucket, keys, releaseBatch).Scan(&last); err != nil {
		return 0, err
	}
	ended, err := tx.Exec(ctx, sql.Query("end_release"), transport, bucket, keys)
	if err != nil {
		return 0, err
	}
	// The last batch of a key records its release; an interrupted one is repeated.
	r.n += int(ended.RowsAffected())
	return max(last, 1), r.audit(ctx, tx, int(ended.RowsAffected()))
}
