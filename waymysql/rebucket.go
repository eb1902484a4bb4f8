package waymysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// odd reports whether a transport has another number of buckets than recorded.
func (db *DB) odd(ctx context.Context, q executor, buckets int) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, db.rebucketing.Query("odd"), buckets, buckets).Scan(&n)
	return n > 0, err
}

// Rebucket implements admin.Database. It is one transaction that holds all
// locks: dispatchers and relays wait for it, and then see other buckets. It mends
// transports with another number of buckets as well.
func (db *DB) Rebucket(ctx context.Context, buckets int, dryRun bool) (done admin.Rebucketed, err error) {
	done = admin.Rebucketed{Database: db.schema, To: buckets}
	if !outbox.ValidBuckets(buckets) {
		return done, fmt.Errorf("rebucket: %d buckets: want a power of two up to %d", buckets, outbox.MaxBuckets)
	}
	conn, release, err := db.oneMigrator(ctx)
	if err != nil {
		return done, fmt.Errorf("rebucket: %w", translate(err))
	}
	defer release()
	switch current, _, err := db.schemaVersion(ctx, conn); {
	case err != nil:
		return done, fmt.Errorf("rebucket: %w", translate(err))
	case current != wantedVersion:
		return done, fmt.Errorf("rebucket: %w: the tables have version %d, want %d: run `waybill schema up`", admin.ErrSchema, current, wantedVersion)
	}
	if dryRun {
		if err = conn.QueryRowContext(ctx, db.outbox.Query("buckets_now")).Scan(&done.From); err == nil {
			err = conn.QueryRowContext(ctx, db.rebucketing.Query("count")).Scan(&done.Rows)
		}
		return done, translate(err)
	}
	if err := db.rebucketAlone(ctx, conn, &done); err != nil {
		return done, fmt.Errorf("rebucket: %w", translate(err))
	}
	db.setBuckets(buckets)
	return done, nil
}

func (db *DB) rebucketAlone(ctx context.Context, conn *sql.Conn, done *admin.Rebucketed) error {
	return db.alone(ctx, conn, true, func() error {
		return transact(ctx, conn, func(tx *sql.Tx) error { return db.rebucket(ctx, tx, done) })
	})
}

func (db *DB) rebucket(ctx context.Context, tx *sql.Tx, done *admin.Rebucketed) error {
	start := time.Now() // from here on dispatchers and relays may wait
	if err := tx.QueryRowContext(ctx, db.outbox.Query("lock_number")).Scan(&done.From); err != nil {
		return err
	}
	for _, name := range []string{"lock_gates", "lock_blocked", "lock_buckets"} {
		if err := each(ctx, tx, db.rebucketing.Query(name), func(*sql.Rows) error { return nil }); err != nil {
			return err
		}
	}
	if odd, err := db.odd(ctx, tx, done.To); err != nil || !odd && done.From == done.To {
		return err
	}
	if err := tx.QueryRowContext(ctx, db.rebucketing.Query("count")).Scan(&done.Rows); err != nil {
		return err
	}
	if done.Rows > admin.MaxRebucket {
		return fmt.Errorf("%d keyed messages wait in the outbox, and everybody would wait while they are moved: let the relays bring them down to %d first", done.Rows, admin.MaxRebucket)
	}
	for _, name := range []string{"move", "move_blocked", "move_routes", "remove_buckets", "remove_gates", "bump"} {
		var args []any
		if name != "move_routes" && name != "bump" {
			args = []any{done.To}
		}
		if _, err := tx.ExecContext(ctx, db.rebucketing.Query(name), args...); err != nil {
			return err
		}
	}
	names := map[string]int16{}
	if err := each(ctx, tx, db.rebucketing.Query("transports"), func(rows *sql.Rows) error {
		var id int16
		var name string
		err := rows.Scan(&id, &name)
		names[name] = id
		return err
	}); err != nil {
		return err
	}
	for name, id := range names {
		if _, err := tx.ExecContext(ctx, db.rebucketing.Query("rename_gates"), []byte(gateName(name, done.To)), id); err != nil {
			return err
		}
		if err := db.addBuckets(ctx, tx, name, done.To); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, db.rebucketing.Query("record"), strconv.Itoa(done.To)); err != nil {
		return err
	}
	done.Stall = time.Since(start)
	return nil
}
