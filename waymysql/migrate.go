package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

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
	all := migrations(db.schema, db.prefix)
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
	if err := db.mendProcedures(ctx, conn, all); err != nil {
		return applied, fmt.Errorf("procedures: %w", err)
	}
	return applied, db.mend(ctx, conn)
}

// mendProcedures makes missing procedures: mysqldump leaves them out unless it is told otherwise.
func (db *DB) mendProcedures(ctx context.Context, conn *sql.Conn, all sqlcore.Migrations) error {
	for _, m := range all {
		for _, s := range sqlfile.Statements(m.SQL) {
			name, ok := strings.CutPrefix(s, "CREATE PROCEDURE "+qualified(db.schema, db.prefix))
			if !ok {
				continue
			}
			name, _, _ = strings.Cut(name, "(")
			var exists bool
			err := conn.QueryRowContext(ctx, db.migrating.Query("any_procedure"), db.schema, db.prefix+name).Scan(&exists)
			if err == nil && !exists {
				_, err = conn.ExecContext(ctx, s)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
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

// oneMigrator lets one process at a time change the tables.
func (db *DB) oneMigrator(ctx context.Context) (conn *sql.Conn, release func(), err error) {
	pool, err := db.relayPool(ctx) // so that the server ends the transaction of a frozen process
	if err != nil {
		return nil, nil, err
	}
	if conn, err = pool.Conn(ctx); err != nil {
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlcore.RollbackTimeout)
		defer cancel()
		_, _ = conn.ExecContext(ctx, db.migrating.Query("unlock"), lock)
		_ = conn.Close()
	}, nil
}

// apply runs the statements of m from the first that was not run. The server
// knows no transaction of DDL, so each step is written down.
func (db *DB) apply(ctx context.Context, conn *sql.Conn, m sqlcore.Migration, done int) error {
	for i, s := range sqlfile.Statements(m.SQL) {
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
	if _, err := conn.ExecContext(ctx, db.serving.Query("short_waits")); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlcore.RollbackTimeout)
		defer cancel()
		_, _ = conn.ExecContext(ctx, db.serving.Query("usual_waits"))
		if !pause {
			return
		}
		if _, err := conn.ExecContext(ctx, db.rebucketing.Query("resume")); err != nil { // the end of the caller's context may have closed conn
			_, _ = db.pool.ExecContext(ctx, db.rebucketing.Query("resume"))
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
