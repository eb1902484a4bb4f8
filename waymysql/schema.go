package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

// wantedVersion is the version of the last migration.
const wantedVersion = 1

// migrations returns all of them in order.
func migrations(schema, prefix string) (sqlcore.Migrations, error) {
	return sqlcore.ReadMigrations(sqlFiles, func(text string) string { return qualify(text, schema, prefix) })
}

const (
	// A statement that changes a table in use waits for its users, and later users
	// wait behind it: better to step back and try again. The server counts
	// whole seconds from one, or, on MariaDB, none.
	lockTries = 200
	lockPause = 50 * time.Millisecond
)

// SchemaUp creates or upgrades the tables. It may be run at any time, also by
// several at once, and does nothing when they are up to date. The server commits
// each statement separately: SchemaUp continues where an interrupted one stopped.
func (db *DB) SchemaUp(ctx context.Context) (admin.SchemaStatus, error) {
	applied, err := db.migrate(ctx)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema up: %w", translate(err))
	}
	status, err := db.SchemaStatus(ctx)
	status.Applied = applied
	return status, err
}

func (db *DB) migrate(ctx context.Context) (applied []string, err error) {
	if _, err := db.server(ctx); err != nil {
		return nil, err
	}
	all, err := migrations(db.schema, db.prefix)
	if err != nil {
		return nil, err
	}
	conn, release, err := db.oneMigrator(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	current, begun, err := db.schemaVersion(ctx, conn)
	if err != nil {
		return nil, err
	}
	for _, m := range all.After(current) {
		if err := db.apply(ctx, conn, m, begun.of(m.Version)); err != nil {
			return applied, fmt.Errorf("migration %s: %w", m.Name, err)
		}
		applied = append(applied, m.Name)
	}
	return applied, db.mend(ctx, conn)
}

// mend gives every transport as many buckets as are recorded.
func (db *DB) mend(ctx context.Context, conn *sql.Conn) error {
	if current, _, err := db.schemaVersion(ctx, conn); err != nil || current > wantedVersion {
		return err
	}
	var buckets int
	if err := conn.QueryRowContext(ctx, db.outbox.Query("buckets_now")).Scan(&buckets); err != nil || !outbox.ValidBuckets(buckets) {
		return err
	}
	odd, err := db.odd(ctx, conn, buckets)
	if err != nil || !odd {
		return err
	}
	return db.rebucketAlone(ctx, conn, &admin.Rebucketed{To: buckets})
}

// odd reports whether a transport has another number of buckets than recorded.
func (db *DB) odd(ctx context.Context, q rowQuerier, buckets int) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, db.rebucketing.Query("odd"), buckets, buckets).Scan(&n)
	return n > 0, err
}

// oneMigrator lets one process at a time change the tables.
func (db *DB) oneMigrator(ctx context.Context) (conn *sql.Conn, release func(), err error) {
	conn, err = db.pool.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	lock := db.schema + "." + db.prefix + "schema"
	var mine sql.NullInt64
	err = conn.QueryRowContext(ctx, db.migrating.Query("lock"), lock).Scan(&mine)
	if err == nil && mine.Int64 != 1 {
		err = errors.New("another process has been changing the tables for a minute")
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, func() {
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), db.migrating.Query("unlock"), lock)
		_ = conn.Close()
	}, nil
}

// apply runs the statements of m from the first that was not run. The server
// knows no transaction of DDL, so each step is written down.
func (db *DB) apply(ctx context.Context, conn *sql.Conn, m sqlcore.Migration, done int) error {
	statements, err := sqlfile.Statements(m.SQL)
	if err != nil {
		return err
	}
	for i, s := range statements {
		if i < done {
			continue
		}
		if err := db.alone(ctx, conn, m.Version > 1, func() error {
			_, err := conn.ExecContext(ctx, s)
			return err
		}); err != nil && !(i == done && isMade(err)) { // it may have been run, and not written down
			return err
		}
		// The first statement of all makes the table where the steps are kept.
		if _, err := conn.ExecContext(ctx, db.migrating.Query("note_step"), fmt.Sprintf("%d.%d", m.Version, i+1)); err != nil {
			return err
		}
	}
	for _, s := range []string{noteVersion(db.migrating, m.Version), db.migrating.Query("forget_step")} {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// alone makes a change that may have to wait for users of a table, with relays
// paused where there are tables already.
func (db *DB) alone(ctx context.Context, conn *sql.Conn, pause bool, change func() error) error {
	if _, err := conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1"); err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		_, _ = conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = DEFAULT, innodb_lock_wait_timeout = DEFAULT")
		if pause {
			_, _ = conn.ExecContext(ctx, db.rebucketing.Query("resume"))
		}
	}()
	for try := 1; ; try++ {
		if pause {
			if _, err := conn.ExecContext(ctx, db.rebucketing.Query("pause"), pauseTime.Microseconds()); err != nil {
				return err
			}
		}
		err := change()
		if (is(err, errLockWait) || is(err, errDeadlock) || is(err, errChanged)) && try < lockTries && sleep(ctx, lockPause) {
			continue
		}
		return err
	}
}

// pauseTime is longer than a try.
const pauseTime = 10 * time.Second

// noteVersion returns a statement for SchemaSQL as well, without arguments.
func noteVersion(named sqlfile.Set, version int) string {
	return fill(named.Query("note_version"), clause{text: fmt.Sprintf("'%d'", version)}).text
}

// SchemaStatus compares the tables with this version's migrations. It refuses unknown
// buckets, as every other use does.
func (db *DB) SchemaStatus(ctx context.Context) (admin.SchemaStatus, error) {
	all, err := migrations(db.schema, db.prefix)
	if err != nil {
		return admin.SchemaStatus{}, err
	}
	current, _, err := db.schemaVersion(ctx, db.pool)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema status: %w", translate(err))
	}
	status := all.Status(db.schema, db.prefix, current)
	if status.Err() == nil {
		_, err = db.readBuckets(ctx)
	}
	return status, err
}

// SchemaSQL implements admin.Database.
func (db *DB) SchemaSQL() (string, error) { return SchemaSQL(db.schema, db.prefix) }

// SchemaSQL returns the statements that SchemaUp runs on an empty database, as
// the server's own client reads them, for a migration tool of the user's own.
// Empty mean "app" and "waybill_".
func SchemaSQL(schema, prefix string) (string, error) {
	schema, prefix = cmp.Or(schema, "app"), cmp.Or(prefix, defaultPrefix)
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
	named, err := namedSQL("migrate", schema, prefix)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("DELIMITER //\n\n") // bodies of procedures have semicolons
	for _, m := range all {
		statements, err := sqlfile.Statements(m.SQL)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "-- %s\n", m.Name)
		for _, s := range append(statements, noteVersion(named, m.Version)) {
			fmt.Fprintf(&b, "%s //\n\n", s)
		}
	}
	b.WriteString("DELIMITER ;\n")
	return b.String(), nil
}

type rowQuerier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Steps are how many statements have been run on the way to a version that is
// not reached.
type steps struct{ to, done int }

// of returns the steps done on the way to version.
func (s steps) of(version int) int {
	if s.to == version {
		return s.done
	}
	return 0
}

// schemaVersion returns 0 when there are no tables.
func (db *DB) schemaVersion(ctx context.Context, q rowQuerier) (version int, begun steps, err error) {
	var exists bool
	if err := q.QueryRowContext(ctx, db.migrating.Query("any_table"), db.schema, db.prefix+"meta").Scan(&exists); err != nil || !exists {
		return 0, begun, err
	}
	meta := qualified(db.schema, db.prefix) + "meta"
	read := func(name string) (string, error) {
		var value string
		err := q.QueryRowContext(ctx, db.migrating.Query("read"), name).Scan(&value)
		if errors.Is(err, sql.ErrNoRows) {
			return "", nil
		}
		return value, err
	}
	value, err := read("schema_version")
	if err != nil {
		return 0, begun, err
	}
	if version, err = sqlcore.ParseVersion(meta, cmp.Or(value, "0")); err != nil {
		return 0, begun, err
	}
	if version == 0 {
		begun = steps{1, 1} // the table meta itself
	}
	if value, err = read("schema_step"); err != nil || value == "" {
		return version, begun, err
	}
	if _, err := fmt.Sscanf(value, "%d.%d", &begun.to, &begun.done); err != nil {
		return 0, begun, fmt.Errorf("%s: schema_step %q is not version and step", meta, value)
	}
	return version, begun, nil
}

// checkSchema refuses tables that are missing, older than this version knows,
// more than one version ahead of it, or arranged in buckets that it does not
// know. It returns how many buckets there are.
func (db *DB) checkSchema(ctx context.Context) (buckets int, err error) {
	status, err := db.SchemaStatus(ctx)
	if err == nil {
		err = status.Err()
	}
	if err != nil {
		return 0, err
	}
	return db.readBuckets(ctx)
}

// readBuckets refuses buckets that this version does not know, and returns how many
// there are.
func (db *DB) readBuckets(ctx context.Context) (n int, err error) {
	var count, hash string
	err = db.pool.QueryRowContext(ctx, db.migrating.Query("buckets")).Scan(&count, &hash)
	if err != nil {
		return 0, translate(err)
	}
	if n, err = strconv.Atoi(count); err != nil || !outbox.ValidBuckets(n) || hash != bucketHash {
		return 0, fmt.Errorf("%w: the outbox of %s records %s buckets by %s: this waybill works with a power of two up to %d by %s; dispatchers and relays must agree, or keys lose their order",
			admin.ErrSchema, db.schema, count, hash, outbox.MaxBuckets, bucketHash)
	}
	odd, err := db.odd(ctx, db.pool, n)
	if err == nil && odd {
		err = fmt.Errorf("%w: a transport of the outbox of %s has not the %d buckets that are recorded: run `waybill schema up`", admin.ErrSchema, db.schema, n)
	}
	return n, translate(err)
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
		tx, err := conn.BeginTx(ctx, readCommitted)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := db.rebucket(ctx, tx, done); err != nil {
			return err
		}
		return tx.Commit()
	})
}

func (db *DB) rebucket(ctx context.Context, tx *sql.Tx, done *admin.Rebucketed) error {
	start := time.Now() // from here on dispatchers and relays may wait
	if err := tx.QueryRowContext(ctx, db.rebucketing.Query("read")).Scan(&done.From); err != nil {
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
