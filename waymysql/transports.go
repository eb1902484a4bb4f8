package waymysql

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
)

// AddTransports implements outbox.Writer. It checks the server's settings as well, which
// is not possible inside a transaction of the caller's.
func (db *DB) AddTransports(ctx context.Context, names ...string) error {
	if err := db.writer(ctx); err != nil {
		return err
	}
	known, err := db.readTransports(ctx, db.pool)
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
		if err := tx.QueryRowContext(ctx, db.outbox.Query("lock_number")).Scan(&buckets); err != nil {
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
		_, err = db.readTransports(ctx, db.pool)
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

// readTransports reads the numbers of all transports that have buckets, by the pool or in a
// transaction.
func (db *DB) readTransports(ctx context.Context, q executor) (map[string]int16, error) {
	found := map[string]int16{}
	err := each(ctx, q, db.outbox.Query("transports"), func(rows *sql.Rows) error {
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
	if !maps.Equal(found, db.transports) {
		db.renewals++
	}
	db.transports = found
	return found, nil
}

// transport returns the number of a transport, or 0 when there is none.
func (db *DB) transport(ctx context.Context, name string) (int16, error) {
	db.mu.Lock()
	id := db.transports[name]
	db.mu.Unlock()
	if id == 0 {
		known, err := db.readTransports(ctx, db.pool)
		return known[name], err
	}
	return id, nil
}
