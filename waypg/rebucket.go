package waypg

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// Rebucket implements admin.Database. It is one transaction: dispatchers and relays
// wait for it, and then use the new buckets.
func (db *DB) Rebucket(ctx context.Context, buckets int, dryRun bool) (done admin.Rebucketed, err error) {
	if !outbox.ValidBuckets(buckets) {
		return done, fmt.Errorf("rebucket: %d buckets: want a power of two up to %d", buckets, outbox.MaxBuckets)
	}
	if err := db.checkVersion(ctx); err != nil {
		return done, fmt.Errorf("rebucket: %w", err)
	}
	p := db.resolved()
	if err := db.refresh(ctx, p, db.pool.QueryRow); err != nil {
		return done, fmt.Errorf("rebucket: %w", err)
	}
	done = admin.Rebucketed{Database: p.database + "." + p.schema, From: db.bucketCount(), To: buckets}
	if dryRun {
		err = db.pool.QueryRow(ctx, p.rebucket.Query("count")).Scan(&done.Rows)
		return done, translate(err)
	}
	err = db.patiently(ctx, p, func() error {
		return db.inTx(ctx, func(tx pgx.Tx) error { return db.rebucket(ctx, tx, p, &done) })
	})
	if err != nil {
		return done, fmt.Errorf("rebucket: %w", translate(err))
	}
	db.recheckSchema()
	return done, nil
}

// rebucket also moves rows out of wrong buckets, and corrects missing or surplus
// bucket rows.
func (db *DB) rebucket(ctx context.Context, tx pgx.Tx, p *catalog, done *admin.Rebucketed) error {
	if err := db.oneMigrator(ctx, tx, p); err != nil {
		return err
	}
	start := time.Now() // from here on dispatchers and relays may wait
	if _, err := tx.Exec(ctx, p.rebucket.Query("lock")); err != nil {
		return err
	}
	var transports string
	if err := tx.QueryRow(ctx, p.outbox.Query("known")).Scan(&done.From, &transports); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, p.rebucket.Query("count")).Scan(&done.Rows); err != nil {
		return err
	}
	if done.From != done.To && done.Rows > admin.MaxRebucket {
		return fmt.Errorf("%d keyed messages wait in the outbox, and every dispatcher would wait while they are moved: let the relays bring them down to %d first", done.Rows, admin.MaxRebucket)
	}
	moved, err := tx.Exec(ctx, p.rebucket.Query("move"), done.To)
	if err != nil {
		return err
	}
	if done.From == done.To {
		done.Rows = int(moved.RowsAffected()) // rows that were in a wrong bucket
	}
	batch := &pgx.Batch{}
	batch.Queue(p.rebucket.Query("move_blocked"), done.To)
	batch.Queue(p.rebucket.Query("record"), strconv.Itoa(done.To))
	batch.Queue(strings.Replace(p.rebucket.Query("number"), "%d", strconv.Itoa(done.To), 1))
	batch.Queue(p.rebucket.Query("bump"))
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if err := mendBuckets(ctx, tx, p, nil); err != nil {
		return err
	}
	done.Stall = time.Since(start)
	return nil
}
