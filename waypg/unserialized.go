package waypg

import (
	"context"
	"fmt"
	"time"
)

// AllowUnserialized implements outbox.UnserializedWriter: it is written down in
// waybill_meta, where relays look every second.
func (db *DB) AllowUnserialized(ctx context.Context) error {
	p, err := db.ready(ctx)
	if err != nil {
		return err
	}
	// Most of the time it is there, and a process that may not write may still
	// read.
	if err := db.lookUnserialized(ctx, p); err != nil {
		return err
	}
	if db.anyUnserialized() {
		return nil
	}
	if _, err := db.pool.Exec(ctx, p.outbox.Query("allow_unserialized")); err != nil {
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
func (db *DB) upkeepUnserialized(ctx context.Context, p *place, now time.Time) error {
	db.mu.Lock()
	due := !db.unserialized && now.Sub(db.askedUnserialized) >= unserializedEvery
	if due {
		db.askedUnserialized = now
	}
	db.mu.Unlock()
	if !due {
		return nil
	}
	return db.lookUnserialized(ctx, p)
}

func (db *DB) lookUnserialized(ctx context.Context, p *place) error {
	var allowed bool
	if err := db.pool.QueryRow(ctx, p.outbox.Query("unserialized")).Scan(&allowed); err != nil {
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
