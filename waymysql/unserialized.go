package waymysql

import (
	"context"
	"fmt"
	"time"
)

// AllowUnserialized implements outbox.UnserializedWriter: it is written down in
// waybill_meta, where relays look every second.
func (db *DB) AllowUnserialized(ctx context.Context) error {
	if err := db.ready(ctx); err != nil {
		return err
	}
	// Most of the time it is there, and a process that may not write may still
	// read.
	if err := db.lookUnserialized(ctx); err != nil {
		return err
	}
	if db.anyUnserialized() {
		return nil
	}
	if err := db.writer(ctx); err != nil {
		return err
	}
	if _, err := db.pool.ExecContext(ctx, db.outbox.Query("allow_unserialized")); err != nil {
		return fmt.Errorf("unserialized: %w", translate(err))
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.unserialized = true
	return nil
}

// unserializedEvery is how often relays ask whether unserialized rows may come.
// Until they may, they cost nothing else.
const unserializedEvery = time.Second

// upkeepUnserialized asks when it is time to.
func (db *DB) upkeepUnserialized(ctx context.Context, now time.Time) error {
	db.mu.Lock()
	due := !db.unserialized && now.Sub(db.askedUnserialized) >= unserializedEvery
	if due {
		db.askedUnserialized = now
	}
	db.mu.Unlock()
	if !due {
		return nil
	}
	return db.lookUnserialized(ctx)
}

func (db *DB) lookUnserialized(ctx context.Context) error {
	var allowed bool
	if err := db.pool.QueryRowContext(ctx, db.outbox.Query("unserialized")).Scan(&allowed); err != nil {
		return fmt.Errorf("unserialized: %w", translate(err))
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.unserialized = db.unserialized || allowed
	return nil
}

// anyUnserialized reports whether unserialized rows may be there.
func (db *DB) anyUnserialized() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.unserialized
}

// notBehind returns from for the rows of a bucket that are of no route that waits,
// and not behind one that is in their keys.
func (c *claim) notBehind(bucket int16, from string, route entry) string {
	return fmt.Sprintf(" FROM (SELECT h.id, MAX(h.held) OVER (PARTITION BY h.partition_key ORDER BY h.id) AS waits FROM (SELECT e.id, e.partition_key, NOT %s AS held%s) AS h) AS w"+
		" STRAIGHT_JOIN %soutbox AS e FORCE INDEX (PRIMARY) ON e.lane = %d AND e.bucket = %d AND e.id = w.id WHERE NOT w.waits",
		route.get(c.due(), "TRUE"), from, qualified(c.db.schema, c.db.prefix), c.Lane.ID, bucket)
}
