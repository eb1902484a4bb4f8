package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A database is a schema of the program's own in PostgreSQL.
type database struct {
	schema string
	// pool is shared by all contestants, of which one is at work at a time. Its
	// search path is the schema.
	pool *pgxpool.Pool
}

func openDatabase(ctx context.Context, url string) (*database, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	db := &database{schema: fmt.Sprintf("waybill_peers_%d", time.Now().UnixMilli())}
	config.MaxConns = 20
	config.ConnConfig.RuntimeParams["search_path"] = db.schema
	if db.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if err := db.exec(ctx, "CREATE SCHEMA "+pgx.Identifier{db.schema}.Sanitize()); err != nil {
		db.pool.Close()
		return nil, err
	}
	return db, nil
}

func (db *database) exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := db.pool.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// warm makes the pool hold open connections, of which a contestant may have
// closed some when it stopped.
func (db *database) warm(ctx context.Context) error {
	for range 8 {
		conn, err := db.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
	}
	return nil
}

// until asks every 10 ms until the answer is true. It gives up after a minute.
func (db *database) until(ctx context.Context, query string, args ...any) error {
	deadline := time.Now().Add(time.Minute)
	for {
		var yes bool
		if err := db.pool.QueryRow(ctx, query, args...).Scan(&yes); err != nil {
			return fmt.Errorf("%s: %w", query, err)
		}
		if yes {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not true after a minute: %s", query)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (db *database) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	name := pgx.Identifier{db.schema}.Sanitize()
	err := db.exec(ctx, "DROP SCHEMA "+name+" CASCADE")
	if err != nil {
		err = fmt.Errorf("%w: run it by hand", err)
	}
	db.pool.Close()
	return err
}
