package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

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
	// else waits behind it: better to step back and try again. The server counts
	// whole seconds from one, or, on MariaDB, none.
	lockTries = 200
	lockPause = 50 * time.Millisecond
)

// SchemaUp creates or upgrades the tables. It may be run at any time, also by
// several at once, and does nothing when they are up to date. The server commits
// each statement on its own: one that is interrupted goes on where it stopped.
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
	current, begun, err := schemaVersion(ctx, conn, db.schema, db.prefix)
	if err != nil {
		return nil, err
	}
	if begun.to > 0 && begun.to < current {
		return nil, fmt.Errorf("%w: a schema down to version %d was interrupted: run `waybill schema down` again first", admin.ErrSchema, begun.to)
	}
	for _, m := range all {
		if m.version <= current {
			continue
		}
		if err := db.apply(ctx, conn, m, begun.of(m.version)); err != nil {
			return applied, fmt.Errorf("migration %s: %w", m.name, err)
		}
		applied = append(applied, m.name)
	}
	return applied, nil
}

// oneMigrator lets one process at a time change the tables.
func (db *DB) oneMigrator(ctx context.Context) (conn *sql.Conn, release func(), err error) {
	conn, err = db.pool.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	lock := db.schema + "." + db.prefix + "schema"
	var mine sql.NullInt64
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK(SHA2(?, 256), 60)", lock).Scan(&mine)
	if err == nil && mine.Int64 != 1 {
		err = errors.New("another process has been changing the tables for a minute")
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, func() {
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), "DO RELEASE_LOCK(SHA2(?, 256))", lock)
		_ = conn.Close()
	}, nil
}

// apply runs the statements of m from the first that was not run. The server
// knows no transaction of DDL, so each step is written down.
func (db *DB) apply(ctx context.Context, conn *sql.Conn, m migration, done int) error {
	statements, err := sqlfile.Statements(m.sql)
	if err != nil {
		return err
	}
	meta := qualified(db.schema, db.prefix) + "meta"
	for i, s := range statements {
		if i < done {
			continue
		}
		if err := db.alone(ctx, conn, m.version > 1, func() error {
			_, err := conn.ExecContext(ctx, s)
			return err
		}); err != nil && !(i == done && isMade(err)) { // it may have been run, and not written down
			return err
		}
		// The first statement of all makes the table where the steps are kept.
		note := fmt.Sprintf("REPLACE INTO %s (name, value) VALUES ('schema_step', '%d.%d')", meta, m.version, i+1)
		if _, err := conn.ExecContext(ctx, note); err != nil {
			return err
		}
	}
	for _, s := range []string{setVersion(m.version, db.schema, db.prefix), "DELETE FROM " + meta + " WHERE name = 'schema_step'"} {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// alone makes a change that may have to wait for those who use a table, with
// relays paused where there are tables already.
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
		if (is(err, errLockWait) || is(err, errDeadlock)) && try < lockTries && sleep(ctx, lockPause) {
			continue
		}
		return err
	}
}

// pauseTime is longer than a try.
const pauseTime = 10 * time.Second

func setVersion(version int, schema, prefix string) string {
	return fmt.Sprintf("REPLACE INTO %smeta (name, value) VALUES ('schema_version', '%d')", qualified(schema, prefix), version)
}

// SchemaStatus compares the tables with what this version of waybill wants.
func (db *DB) SchemaStatus(ctx context.Context) (admin.SchemaStatus, error) {
	all, err := migrations(db.schema, db.prefix)
	if err != nil {
		return admin.SchemaStatus{}, err
	}
	current, _, err := schemaVersion(ctx, db.pool, db.schema, db.prefix)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema status: %w", translate(err))
	}
	status := admin.SchemaStatus{Database: db.schema, Prefix: db.prefix, Version: current, Wanted: all[len(all)-1].version}
	for _, m := range all {
		if m.version > current {
			status.Pending = append(status.Pending, m.name)
		}
	}
	return status, nil
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
	var b strings.Builder
	b.WriteString("DELIMITER //\n\n") // bodies of procedures have semicolons
	for _, m := range all {
		statements, err := sqlfile.Statements(m.sql)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "-- %s\n", m.name)
		for _, s := range append(statements, setVersion(m.version, schema, prefix)) {
			fmt.Fprintf(&b, "%s //\n\n", s)
		}
	}
	b.WriteString("DELIMITER ;\n")
	return b.String(), nil
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Steps are how many statements have been run on the way to a version that is
// not reached.
type steps struct{ to, done int }

// of returns those on the way to version.
func (s steps) of(version int) int {
	if s.to == version {
		return s.done
	}
	return 0
}

// schemaVersion returns 0 when there are no tables.
func schemaVersion(ctx context.Context, q querier, schema, prefix string) (version int, begun steps, err error) {
	var exists bool
	if err := q.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?)", schema, prefix+"meta").Scan(&exists); err != nil || !exists {
		return 0, begun, err
	}
	meta := qualified(schema, prefix) + "meta"
	read := func(name string) (string, error) {
		var value string
		err := q.QueryRowContext(ctx, "SELECT value FROM "+meta+" WHERE name = ?", name).Scan(&value)
		if errors.Is(err, sql.ErrNoRows) {
			return "", nil
		}
		return value, err
	}
	value, err := read("schema_version")
	if err != nil {
		return 0, begun, err
	}
	if version, err = strconv.Atoi(cmp.Or(value, "0")); err != nil {
		return 0, begun, fmt.Errorf("%s: schema_version %q is not a number", meta, value)
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
	if err != nil {
		return 0, err
	}
	if err := status.Err(); err != nil {
		return 0, err
	}
	var count, hash string
	var odd sql.NullInt64
	err = db.pool.QueryRowContext(ctx, fmt.Sprintf(`SELECT COALESCE((SELECT value FROM %[1]smeta WHERE name = 'buckets'), '?'), COALESCE((SELECT value FROM %[1]smeta WHERE name = 'hash'), '?'),
		(SELECT MIN(n) FROM (SELECT COUNT(*) AS n FROM %[1]soutbox_bucket GROUP BY lane) AS of_lanes WHERE n <> (SELECT value FROM %[1]smeta WHERE name = 'buckets'))`, qualified(db.schema, db.prefix))).Scan(&count, &hash, &odd)
	if err != nil {
		return 0, translate(err)
	}
	n, err := strconv.Atoi(count)
	if err != nil || !outbox.ValidBuckets(n) || hash != bucketHash || odd.Valid {
		lanes := count
		if odd.Valid {
			lanes = strconv.FormatInt(odd.Int64, 10)
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
	undone, err := db.migrateDown(ctx)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema down: %w", translate(err))
	}
	db.lookAgain()
	status, err := db.SchemaStatus(ctx)
	status.Undone = undone
	return status, err
}

// migrateDown undoes the newest migration.
func (db *DB) migrateDown(ctx context.Context) (name string, err error) {
	conn, release, err := db.oneMigrator(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	all, err := migrations(db.schema, db.prefix)
	if err != nil {
		return "", err
	}
	current, begun, err := schemaVersion(ctx, conn, db.schema, db.prefix)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all, func(m migration) bool { return m.version == current })
	if i < 1 {
		return "", fmt.Errorf("%w: version %d has none before it", admin.ErrSchema, current)
	}
	var count string
	if err := conn.QueryRowContext(ctx, db.rebucketing.Query("read")).Scan(&count); err != nil {
		return "", err
	}
	if all[i-1].version < 2 && count != strconv.Itoa(outbox.DefaultBuckets) {
		return "", fmt.Errorf("%w: version %d knows %d buckets only, there are %s: run `waybill schema rebucket %[3]d` first", admin.ErrSchema, all[i-1].version, outbox.DefaultBuckets, count)
	}
	if all[i-1].version < unserializedVersion {
		var waiting bool
		if err := conn.QueryRowContext(ctx, db.rebucketing.Query("any_unserialized")).Scan(&waiting); err != nil {
			return "", err
		}
		if waiting {
			return "", fmt.Errorf("%w: relays of version %d do not see the unserialized messages that wait: stop what dispatches them and let relays send them first", admin.ErrSchema, all[i-1].version)
		}
	}
	done := begun.of(all[i-1].version)
	if all[i-1].version < failedVersion && done == 0 {
		var some bool
		if err := conn.QueryRowContext(ctx, db.rebucketing.Query("any_failed")).Scan(&some); err != nil {
			return "", err
		}
		if some {
			return "", anyFailed(all[i-1].version)
		}
	}
	text, err := sqlFiles.ReadFile("sql/down/" + all[i].name + ".sql")
	if err != nil {
		return "", err
	}
	back := migration{all[i-1].version, all[i].name, qualify(string(text), db.schema, db.prefix)}
	err = db.apply(ctx, conn, back, done)
	if is(err, errCheck) || is(err, errCheckMariaDB) { // something has failed since
		err = anyFailed(back.version)
	}
	return back.name, err
}

func anyFailed(version int) error {
	return fmt.Errorf("%w: version %d has no failure store: release what is parked, and retry or remove what is in `waybill failed list` first", admin.ErrSchema, version)
}

// unserializedVersion is the first with buckets for unserialized messages.
const unserializedVersion = 3

// failedVersion is the first with a failure store.
const failedVersion = 4

// Rebucket implements admin.Database. It is one transaction that holds all
// gates: who dispatches or relays waits for it, and then sees other buckets.
func (db *DB) Rebucket(ctx context.Context, buckets int, dryRun bool) (done admin.Rebucketed, err error) {
	if !outbox.ValidBuckets(buckets) {
		return done, fmt.Errorf("rebucket: %d buckets: want a power of two up to %d", buckets, outbox.MaxBuckets)
	}
	if err := db.writer(ctx); err != nil {
		return done, fmt.Errorf("rebucket: %w", err)
	}
	done = admin.Rebucketed{Database: db.schema, From: db.bucketCount(), To: buckets}
	if dryRun {
		err = db.pool.QueryRowContext(ctx, db.rebucketing.Query("count")).Scan(&done.Rows)
		return done, translate(err)
	}
	conn, release, err := db.oneMigrator(ctx)
	if err != nil {
		return done, fmt.Errorf("rebucket: %w", translate(err))
	}
	defer release()
	err = db.alone(ctx, conn, true, func() error {
		tx, err := conn.BeginTx(ctx, readCommitted)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := db.rebucket(ctx, tx, &done); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		return done, fmt.Errorf("rebucket: %w", translate(err))
	}
	db.lookAgain()
	return done, nil
}

func (db *DB) rebucket(ctx context.Context, tx *sql.Tx, done *admin.Rebucketed) error {
	start := time.Now() // from here on others may wait
	for _, name := range []string{"lock_gates", "lock_buckets"} {
		rows, err := tx.QueryContext(ctx, db.rebucketing.Query(name))
		if err != nil {
			return err
		}
		for rows.Next() { // what counts is that they are locked
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	var count string
	if err := tx.QueryRowContext(ctx, db.rebucketing.Query("read")).Scan(&count); err != nil {
		return err
	}
	done.From, _ = strconv.Atoi(count)
	if done.From == done.To {
		return nil
	}
	if err := tx.QueryRowContext(ctx, db.rebucketing.Query("count")).Scan(&done.Rows); err != nil {
		return err
	}
	if done.Rows > admin.MaxRebucket {
		return fmt.Errorf("%d keyed messages wait in the outbox, and everybody would wait while they are moved: let the relays bring them down to %d first", done.Rows, admin.MaxRebucket)
	}
	for _, name := range []string{"move", "move_blocked", "remove_buckets", "remove_gates"} {
		if _, err := tx.ExecContext(ctx, db.rebucketing.Query(name), done.To); err != nil {
			return err
		}
	}
	lanes, err := db.readLanes(ctx)
	if err != nil {
		return err
	}
	for name, id := range lanes {
		gates := []byte(gateName(name, done.To))
		if _, err := tx.ExecContext(ctx, db.rebucketing.Query("rename_gates"), gates, id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, db.outbox.Query("add_buckets"), done.To, []byte(name)); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, db.outbox.Query("add_gates"), done.To, gates, []byte(name)); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, db.rebucketing.Query("bump")); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, db.rebucketing.Query("record"), strconv.Itoa(done.To)); err != nil {
		return err
	}
	done.Stall = time.Since(start)
	return nil
}
