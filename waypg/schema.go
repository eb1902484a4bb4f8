package waypg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

// A migration takes the tables from version-1 to version. It is never edited
// after its release.
type migration struct {
	version int
	name    string
	sql     string
}

// migrations returns all of them in order.
func migrations(schema, prefix string) ([]migration, error) {
	files, err := fs.Glob(sqlFiles, "sql/schema/*.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	all := make([]migration, 0, len(files))
	for _, file := range files {
		text, err := sqlFiles.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(file[strings.LastIndexByte(file, '/')+1:], ".sql")
		version, err := strconv.Atoi(name[:4])
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		all = append(all, migration{version, name, qualify(string(text), schema, prefix)})
	}
	return all, nil
}

const (
	// A statement that changes a table in use waits for its users, and everybody
	// else waits behind it: better to step back and try again.
	lockTimeout = 200 * time.Millisecond
	lockTries   = 50
)

// SchemaUp creates or upgrades the tables in one transaction, and the schema
// where it is configured and missing. It may be run at any time, also by several
// at once, and does nothing when they are up to date.
func (db *DB) SchemaUp(ctx context.Context) (admin.SchemaStatus, error) {
	p, err := db.where(ctx)
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
func (db *DB) patiently(ctx context.Context, p *place, change func() error) error {
	version, err := schemaVersion(ctx, db.pool, p.schema, db.prefix)
	if err != nil {
		return err
	}
	pause := func() error { return nil }
	if version > 0 {
		pause = func() error {
			_, err := db.pool.Exec(ctx, p.rebucket.Query("pause"), pauseTime.Seconds())
			return err
		}
		defer func() { _, _ = db.pool.Exec(context.WithoutCancel(ctx), p.rebucket.Query("resume")) }()
	}
	for try := 1; ; try++ {
		if err := pause(); err != nil {
			return err
		}
		err := change()
		var server *pgconn.PgError
		if errors.As(err, &server) && server.Code == "55P03" && try < lockTries && sleep(ctx, lockTimeout) {
			continue
		}
		return err
	}
}

// pauseTime is longer than a try.
const pauseTime = 10 * time.Second

func (db *DB) migrate(ctx context.Context, p *place) (applied []string, err error) {
	all, err := migrations(p.schema, db.prefix)
	if err != nil {
		return nil, err
	}
	err = pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) error {
		if err := db.oneMigrator(ctx, tx, p); err != nil {
			return err
		}
		var exists bool // who may not create schemas may use one
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)", p.schema).Scan(&exists); err != nil {
			return err
		}
		if !exists {
			if _, err := tx.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS "`+p.schema+`"`); err != nil {
				return err
			}
		}
		current, err := schemaVersion(ctx, tx, p.schema, db.prefix)
		if err != nil {
			return err
		}
		for _, m := range all {
			if m.version <= current {
				continue
			}
			if err := apply(ctx, tx, m, p.schema, db.prefix); err != nil {
				return fmt.Errorf("migration %s: %w", m.name, err)
			}
			applied = append(applied, m.name)
		}
		return nil
	})
	return applied, err
}

func apply(ctx context.Context, tx pgx.Tx, m migration, schema, prefix string) error {
	statements, err := sqlfile.Statements(m.sql)
	if err != nil {
		return err
	}
	for _, s := range append(statements, setVersion(m.version, schema, prefix)) {
		if _, err := tx.Exec(ctx, s, pgx.QueryExecModeExec); err != nil {
			return err
		}
	}
	return nil
}

func setVersion(version int, schema, prefix string) string {
	return fmt.Sprintf("INSERT INTO %smeta (name, value) VALUES ('schema_version', '%d') ON CONFLICT (name) DO UPDATE SET value = excluded.value", qualified(schema, prefix), version)
}

// SchemaStatus compares the tables with what this version of waybill wants.
func (db *DB) SchemaStatus(ctx context.Context) (admin.SchemaStatus, error) {
	p, err := db.where(ctx)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema status: %w", err)
	}
	all, err := migrations(p.schema, db.prefix)
	if err != nil {
		return admin.SchemaStatus{}, err
	}
	current, err := schemaVersion(ctx, db.pool, p.schema, db.prefix)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema status: %w", translate(err))
	}
	status := admin.SchemaStatus{Database: p.database + "." + p.schema, Prefix: db.prefix, Version: current, Wanted: all[len(all)-1].version}
	for _, m := range all {
		if m.version > current {
			status.Pending = append(status.Pending, m.name)
		}
	}
	return status, nil
}

// SchemaSQL implements admin.Database.
func (db *DB) SchemaSQL() (string, error) { return SchemaSQL(db.schema, db.prefix) }

// SchemaSQL returns the statements that SchemaUp runs on an empty database, for
// a migration tool of the user's own. Empty mean "public" and "waybill_".
func SchemaSQL(schema, prefix string) (string, error) {
	schema, prefix = cmp.Or(schema, "public"), cmp.Or(prefix, defaultPrefix)
	if !sqlfile.ValidPrefix(prefix) {
		return "", badPrefix(prefix)
	}
	if !schemaForm.MatchString(schema) {
		return "", badSchema(schema)
	}
	all, err := migrations(schema, prefix)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, m := range all {
		fmt.Fprintf(&b, "-- %s\n%s\n\n%s;\n", m.name, strings.TrimSpace(m.sql), setVersion(m.version, schema, prefix))
	}
	return b.String(), nil
}

type querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// schemaVersion returns 0 when there are no tables.
func schemaVersion(ctx context.Context, q querier, schema, prefix string) (int, error) {
	meta := qualified(schema, prefix) + "meta"
	var exists bool
	if err := q.QueryRow(ctx, "SELECT to_regclass($1::text) IS NOT NULL", meta).Scan(&exists); err != nil || !exists {
		return 0, err
	}
	var value string
	err := q.QueryRow(ctx, "SELECT value FROM "+meta+" WHERE name = 'schema_version'").Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	version, err := strconv.Atoi(value)
	if err != nil {
		return 0, fmt.Errorf("%s: schema_version %q is not a number", meta, value)
	}
	return version, nil
}

// checkSchema refuses tables that are missing, older than this version knows,
// more than one version ahead of it, or arranged in buckets that it does not
// know. It returns how many buckets there are.
func (db *DB) checkSchema(ctx context.Context) (buckets int, err error) {
	status, err := db.SchemaStatus(ctx)
	if err != nil {
		return 0, err
	}
	if err := status.Err(); err != nil {
		return 0, err
	}
	names := qualified(db.found.schema, db.prefix)
	var count, hash string
	var odd *int
	err = db.pool.QueryRow(ctx, fmt.Sprintf(`SELECT coalesce((SELECT value FROM %[1]smeta WHERE name = 'buckets'), '?'), coalesce((SELECT value FROM %[1]smeta WHERE name = 'hash'), '?'),
		(SELECT min(n) FROM (SELECT count(*) AS n FROM %[1]soutbox_bucket GROUP BY lane) AS of_lanes WHERE n::text <> (SELECT value FROM %[1]smeta WHERE name = 'buckets'))`, names)).Scan(&count, &hash, &odd)
	if err != nil {
		return 0, translate(err)
	}
	n, err := strconv.Atoi(count)
	if err != nil || !outbox.ValidBuckets(n) || hash != bucketHash || odd != nil {
		lanes := count
		if odd != nil {
			lanes = strconv.Itoa(*odd)
		}
		return 0, fmt.Errorf("%w: the outbox of %s records %s buckets by %s and has %s: this waybill works with a power of two up to %d by %s, as `waybill schema rebucket` makes them; dispatchers and relays must agree, or keys lose their order",
			admin.ErrSchema, status.Database, count, hash, lanes, outbox.MaxBuckets, bucketHash)
	}
	return n, nil
}

// sleep waits for d and reports whether ctx allowed it.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// SchemaDown implements admin.Database.
func (db *DB) SchemaDown(ctx context.Context) (admin.SchemaStatus, error) {
	p, err := db.where(ctx)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema down: %w", err)
	}
	var undone string
	err = db.patiently(ctx, p, func() error {
		return pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) (err error) {
			undone, err = db.migrateDown(ctx, tx, p)
			return err
		})
	})
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema down: %w", translate(err))
	}
	status, err := db.SchemaStatus(ctx)
	status.Undone = undone
	return status, err
}

// migrateDown undoes the newest migration.
func (db *DB) migrateDown(ctx context.Context, tx pgx.Tx, p *place) (name string, err error) {
	if err := db.oneMigrator(ctx, tx, p); err != nil {
		return "", err
	}
	all, err := migrations(p.schema, db.prefix)
	if err != nil {
		return "", err
	}
	current, err := schemaVersion(ctx, tx, p.schema, db.prefix)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all, func(m migration) bool { return m.version == current })
	if i < 1 {
		return "", fmt.Errorf("%w: version %d has none before it", admin.ErrSchema, current)
	}
	var count string
	if err := tx.QueryRow(ctx, "SELECT value FROM "+qualified(p.schema, db.prefix)+"meta WHERE name = 'buckets'").Scan(&count); err != nil {
		return "", err
	}
	if all[i-1].version < 2 && count != strconv.Itoa(outbox.DefaultBuckets) {
		return "", fmt.Errorf("%w: version %d knows %d buckets only, there are %s: run `waybill schema rebucket %[3]d` first", admin.ErrSchema, all[i-1].version, outbox.DefaultBuckets, count)
	}
	if all[i-1].version < unserializedVersion {
		var waiting bool
		if err := tx.QueryRow(ctx, p.rebucket.Query("any_unserialized")).Scan(&waiting); err != nil {
			return "", err
		}
		if waiting {
			return "", fmt.Errorf("%w: relays of version %d do not see the unserialized messages that wait: stop what dispatches them and let relays send them first", admin.ErrSchema, all[i-1].version)
		}
	}
	if all[i-1].version < failedVersion {
		if _, err := tx.Exec(ctx, p.rebucket.Query("lock_failed")); err != nil {
			return "", err
		}
		var some bool
		if err := tx.QueryRow(ctx, p.rebucket.Query("any_failed")).Scan(&some); err != nil {
			return "", err
		}
		if some {
			return "", fmt.Errorf("%w: version %d has no failure store: release what is parked, and retry or remove what is in `waybill failed list` first", admin.ErrSchema, all[i-1].version)
		}
	}
	text, err := sqlFiles.ReadFile("sql/down/" + all[i].name + ".sql")
	if err != nil {
		return "", err
	}
	back := migration{all[i-1].version, all[i].name, qualify(string(text), p.schema, db.prefix)}
	return back.name, apply(ctx, tx, back, p.schema, db.prefix)
}

// unserializedVersion is the first with buckets for unserialized messages.
const unserializedVersion = 3

// failedVersion is the first with a failure store.
const failedVersion = 4

// Rebucket implements admin.Database. It is one transaction: who dispatches or
// relays waits for it, and then sees other buckets.
func (db *DB) Rebucket(ctx context.Context, buckets int, dryRun bool) (done admin.Rebucketed, err error) {
	if !outbox.ValidBuckets(buckets) {
		return done, fmt.Errorf("rebucket: %d buckets: want a power of two up to %d", buckets, outbox.MaxBuckets)
	}
	p, err := db.ready(ctx)
	if err != nil {
		return done, fmt.Errorf("rebucket: %w", err)
	}
	done = admin.Rebucketed{Database: p.database + "." + p.schema, From: db.bucketCount(), To: buckets}
	if dryRun {
		err = db.pool.QueryRow(ctx, p.rebucket.Query("count")).Scan(&done.Rows)
		return done, translate(err)
	}
	err = db.patiently(ctx, p, func() error {
		return pgx.BeginTxFunc(ctx, db.pool, readCommitted, func(tx pgx.Tx) error { return db.rebucket(ctx, tx, p, &done) })
	})
	if err != nil {
		return done, fmt.Errorf("rebucket: %w", translate(err))
	}
	db.lookAgain()
	return done, nil
}

func (db *DB) rebucket(ctx context.Context, tx pgx.Tx, p *place, done *admin.Rebucketed) error {
	if err := db.oneMigrator(ctx, tx, p); err != nil {
		return err
	}
	start := time.Now() // from here on others may wait
	if _, err := tx.Exec(ctx, p.rebucket.Query("lock")); err != nil {
		return err
	}
	var count string
	if err := tx.QueryRow(ctx, "SELECT value FROM "+qualified(p.schema, db.prefix)+"meta WHERE name = 'buckets'").Scan(&count); err != nil {
		return err
	}
	done.From, _ = strconv.Atoi(count)
	if done.From == done.To {
		return nil
	}
	if err := tx.QueryRow(ctx, p.rebucket.Query("count")).Scan(&done.Rows); err != nil {
		return err
	}
	if done.Rows > admin.MaxRebucket {
		return fmt.Errorf("%d keyed messages wait in the outbox, and everybody would wait while they are moved: let the relays bring them down to %d first", done.Rows, admin.MaxRebucket)
	}
	steps := []struct {
		text string
		args []any
	}{
		{p.rebucket.Query("unconstrain"), nil},
		{p.rebucket.Query("move"), []any{done.To}},
		{p.rebucket.Query("move_blocked"), []any{done.To}},
		{p.rebucket.Query("add"), []any{done.To}},
		{p.rebucket.Query("remove"), []any{done.To}},
		{p.rebucket.Query("bump"), nil},
		{p.rebucket.Query("record"), []any{strconv.Itoa(done.To)}},
		{strings.Replace(p.rebucket.Query("constrain"), "%d", strconv.Itoa(done.To), 1), nil},
	}
	for _, s := range steps {
		if _, err := tx.Exec(ctx, s.text, s.args...); err != nil {
			return err
		}
	}
	done.Stall = time.Since(start)
	return nil
}

// oneMigrator lets one process at a time change the tables, and bounds how long
// it waits for their users.
func (db *DB) oneMigrator(ctx context.Context, tx pgx.Tx, p *place) error {
	_, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1::text, true), pg_advisory_xact_lock($2::int, -2)", fmt.Sprintf("%dms", lockTimeout.Milliseconds()), p.namespace)
	return err
}
