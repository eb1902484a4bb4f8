package waypg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

// migrations returns all of them in order.
func migrations(schema, prefix string) sqlcore.Migrations {
	return sqlcore.MustReadMigrations(sqlFiles, qualify(schema, prefix))
}

const (
	// lockTimeout bounds the wait of DDL for a table in use, because later users
	// queue behind it: it gives up and tries again.
	lockTimeout = 200 * time.Millisecond
	lockTries   = 50
)

// SchemaUp creates or upgrades the tables in one transaction, and the schema
// where it is configured and missing. It may be run at any time, also by several
// at once, and does nothing when they are up to date.
func (db *DB) SchemaUp(ctx context.Context) (admin.SchemaStatus, error) {
	p, err := db.resolve(ctx)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema up: %w", err)
	}
	var applied []string
	err = db.patiently(ctx, p, func() (err error) {
		applied, err = db.migrate(ctx, p)
		return err
	})
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema up: %w", translate(err))
	}
	status, err := db.SchemaStatus(ctx)
	status.Applied = applied
	return status, err
}

// patiently runs a transaction that changes tables, with relays paused, until it
// gets its locks.
func (db *DB) patiently(ctx context.Context, p *catalog, change func() error) error {
	version, err := db.schemaVersion(ctx, db.pool.QueryRow, p)
	if err != nil {
		return err
	}
	pause := func() error { return nil }
	if version > 0 {
		pause = func() error {
			_, err := db.pool.Exec(ctx, p.rebucket.Query("pause"), pauseTime.Seconds())
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlcore.RollbackTimeout)
			defer cancel()
			_, _ = db.pool.Exec(ctx, p.rebucket.Query("resume"))
		}()
	}
	for try := 1; ; try++ {
		if err := pause(); err != nil {
			return err
		}
		err := change()
		if hasCode(err, lockNotAvailable) && try < lockTries && sleep(ctx, lockTimeout) {
			continue
		}
		return err
	}
}

// pauseTime is longer than a try.
const pauseTime = 10 * time.Second

func (db *DB) migrate(ctx context.Context, p *catalog) (applied []string, err error) {
	all := migrations(p.schema, db.prefix)
	err = db.inTx(ctx, func(tx pgx.Tx) error {
		if err := db.oneMigrator(ctx, tx, p); err != nil {
			return err
		}
		var exists bool // a role that may not create schemas may use an existing one
		if err := tx.QueryRow(ctx, p.migrate.Query("any_schema"), p.schema).Scan(&exists); err != nil {
			return err
		}
		if !exists {
			if _, err := tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS "`+p.schema+`"`); err != nil {
				return err
			}
		}
		current, err := db.schemaVersion(ctx, tx.QueryRow, p)
		if err != nil {
			return err
		}
		for _, m := range all.After(current) {
			if err := apply(ctx, tx, m, p.migrate); err != nil {
				return fmt.Errorf("migration %s: %w", m.Name, err)
			}
			applied = append(applied, m.Name)
		}
		if current > all.Wanted() { // the tables are a newer version's
			return nil
		}
		var wrong bool
		if err := tx.QueryRow(ctx, p.outbox.Query("buckets_wrong")).Scan(&wrong); err != nil || !wrong {
			return err
		}
		return mendBuckets(ctx, tx, p, nil)
	})
	return applied, err
}

func apply(ctx context.Context, tx pgx.Tx, m sqlcore.Migration, named sqlfile.Set) error {
	for _, s := range append(sqlfile.Statements(m.SQL), noteVersion(named, m.Version)) {
		if _, err := tx.Exec(ctx, s, pgx.QueryExecModeExec); err != nil {
			return err
		}
	}
	return nil
}

func noteVersion(named sqlfile.Set, version int) string {
	return strings.Replace(named.Query("note_version"), "'VERSION'", "'"+strconv.Itoa(version)+"'", 1)
}

// SchemaStatus compares the tables with the schema of this version of waybill. It
// fails if their version fits and they are unusable.
func (db *DB) SchemaStatus(ctx context.Context) (admin.SchemaStatus, error) {
	status, err := db.versions(ctx)
	if err == nil && status.Err() == nil {
		err = db.checkTables(ctx, status)
	}
	return status, err
}

// versions is SchemaStatus by the recorded version only.
func (db *DB) versions(ctx context.Context) (admin.SchemaStatus, error) {
	p, err := db.resolve(ctx)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema status: %w", err)
	}
	all := migrations(p.schema, db.prefix)
	current, err := db.schemaVersion(ctx, db.pool.QueryRow, p)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema status: %w", translate(err))
	}
	return all.Status(p.database+"."+p.schema, db.prefix, current), nil
}

// SchemaSQL implements admin.Database.
func (db *DB) SchemaSQL() (string, error) { return SchemaSQL(db.schema, db.prefix) }

// SchemaSQL returns the statements that SchemaUp runs on an empty database, for
// a migration tool of the user's own. Empty mean "public" and "waybill_".
func SchemaSQL(schema, prefix string) (string, error) {
	schema, prefix = cmp.Or(schema, "public"), cmp.Or(prefix, defaultPrefix)
	if err := checkNames(schema, prefix); err != nil {
		return "", err
	}
	all := migrations(schema, prefix)
	named := mustNamed("migrate", schema, prefix)
	var b strings.Builder
	for _, m := range all {
		fmt.Fprintf(&b, "-- %s\n%s\n\n%s;\n", m.Name, strings.TrimSpace(m.SQL), noteVersion(named, m.Version))
	}
	return b.String(), nil
}

// schemaVersion returns 0 when there are no tables.
func (db *DB) schemaVersion(ctx context.Context, ask queryRow, p *catalog) (int, error) {
	var exists bool
	var hidden *string
	if err := ask(ctx, p.migrate.Query("any_table")).Scan(&exists, &hidden); err != nil || !exists {
		return 0, err
	}
	if hidden != nil {
		return 0, fmt.Errorf("%w: row level security hides all rows of %s.%s from this role: ALTER TABLE ... DISABLE ROW LEVEL SECURITY, or CREATE POLICY ... USING (true) on each table",
			admin.ErrSchema, p.schema, *hidden)
	}
	var value string
	err := ask(ctx, p.migrate.Query("version")).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return sqlcore.ParseVersion(qualified(p.schema, db.prefix)+"meta", value)
}

// checkSchema refuses tables that this version cannot work with.
func (db *DB) checkSchema(ctx context.Context) error { return usable(db.SchemaStatus(ctx)) }

// checkVersion refuses tables that are missing, older than this version's, or more
// than one version ahead of it.
func (db *DB) checkVersion(ctx context.Context) error { return usable(db.versions(ctx)) }

// usable is the error of a status, or of its reading.
func usable(status admin.SchemaStatus, err error) error {
	if err != nil {
		return err
	}
	return status.Err()
}

// checkTables refuses unknown numbers of buckets, missing or surplus bucket rows,
// and a sequence that caches ids.
func (db *DB) checkTables(ctx context.Context, status admin.SchemaStatus) error {
	var t struct {
		recorded, hash string
		buckets, cache int
		transport      *string
		rows           *int
	}
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { // which a pooler may refuse
		return tx.QueryRow(ctx, db.resolved().outbox.Query("check_tables")).Scan(&t.recorded, &t.hash, &t.buckets, &t.cache, &t.transport, &t.rows)
	})
	switch {
	case err != nil:
		return fmt.Errorf("schema status: %w", translate(err))
	case !outbox.ValidBuckets(t.buckets) || t.recorded != strconv.Itoa(t.buckets) || t.hash != bucketHash:
		return fmt.Errorf("%w: the outbox of %s records %s buckets by %s and computes with %d: this waybill works with a power of two up to %d by %s, as `waybill schema rebucket` makes them; dispatchers and relays must agree, or keys lose their order",
			admin.ErrSchema, status.Database, t.recorded, t.hash, t.buckets, outbox.MaxBuckets, bucketHash)
	case t.transport != nil:
		return fmt.Errorf("%w: transport %q of %s has %d bucket rows, want %d: run `waybill schema up`", admin.ErrSchema, *t.transport, status.Database, *t.rows, t.buckets)
	case t.cache != 1:
		return fmt.Errorf("%w: the sequence %soutbox_id_seq of %s has CACHE %d: ids would not be in commit order; set it to 1 (ALTER SEQUENCE ... CACHE 1)", admin.ErrSchema, db.prefix, status.Database, t.cache)
	}
	return nil
}

// sleep waits for d and reports whether ctx allowed it.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// oneMigrator lets one process at a time change the tables, and bounds how long
// it waits for their users.
func (db *DB) oneMigrator(ctx context.Context, tx pgx.Tx, p *catalog) error {
	_, err := tx.Exec(ctx, p.migrate.Query("lock"), fmt.Sprintf("%dms", lockTimeout.Milliseconds()), p.namespace)
	return err
}
