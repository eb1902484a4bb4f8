package waysqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

// migrations returns all of them in order, for tables with that prefix.
func migrations(prefix string) sqlcore.Migrations {
	return sqlcore.MustReadMigrations(sqlFiles, rewrite(prefix))
}

// SchemaUp creates or upgrades the tables in one transaction. It may be run at
// any time and does nothing when they are up to date.
func (db *DB) SchemaUp(ctx context.Context) (admin.SchemaStatus, error) {
	if waybill.InUnit(ctx, db) {
		return admin.SchemaStatus{}, fmt.Errorf("schema up: %w", waybill.ErrNestedTransaction)
	}
	all := migrations(db.prefix)
	tx, err := db.writer.BeginTx(ctx, nil)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema up: %w", translate(err))
	}
	defer func() { _ = tx.Rollback() }()
	current, err := db.schemaVersion(ctx, tx)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema up: %w", err)
	}
	var applied []string
	for _, m := range all.After(current) {
		if err := db.migrate(ctx, tx, m); err != nil {
			return admin.SchemaStatus{}, fmt.Errorf("schema up: migration %s: %w", m.Name, translate(err))
		}
		applied = append(applied, m.Name)
	}
	if err := tx.Commit(); err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema up: %w", translate(err))
	}
	status, err := db.SchemaStatus(ctx)
	status.Applied = applied
	return status, err
}

func (db *DB) migrate(ctx context.Context, tx *sql.Tx, m sqlcore.Migration) error {
	for _, s := range sqlfile.Statements(m.SQL) {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, noteVersion(db.migrateSQL, m.Version))
	return err
}

// noteVersion is the statement that records a version.
func noteVersion(named sqlfile.Set, version int) string {
	return strings.Replace(named.Query("note_version"), "'VERSION'", "'"+strconv.Itoa(version)+"'", 1)
}

// SchemaStatus compares the tables with the schema of this version of waybill.
func (db *DB) SchemaStatus(ctx context.Context) (admin.SchemaStatus, error) {
	all := migrations(db.prefix)
	pool, err := db.freeReader(ctx)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema status: %w", err)
	}
	current, err := db.schemaVersion(ctx, pool)
	if err != nil {
		return admin.SchemaStatus{}, fmt.Errorf("schema status: %w", err)
	}
	return all.Status(db.path, db.prefix, current), nil
}

// Rebucket implements admin.Database.
func (db *DB) Rebucket(context.Context, int, bool) (admin.Rebucketed, error) {
	return admin.Rebucketed{}, fmt.Errorf("rebucket: a SQLite outbox has no buckets: %w", errors.ErrUnsupported)
}

// SchemaSQL implements admin.Database.
func (db *DB) SchemaSQL() (string, error) { return SchemaSQL(db.prefix) }

// SchemaSQL returns the statements that SchemaUp runs on an empty database, for
// a migration tool of the user's own. An empty prefix means "waybill_".
func SchemaSQL(prefix string) (string, error) {
	prefix = cmp.Or(prefix, defaultPrefix)
	if !sqlfile.ValidPrefix(prefix) {
		return "", badPrefix(prefix)
	}
	all := migrations(prefix)
	named := mustNamed("migrate", prefix)
	var b strings.Builder
	for _, m := range all {
		fmt.Fprintf(&b, "-- %s\n%s\n", m.Name, strings.TrimSpace(m.SQL))
		fmt.Fprintf(&b, "\n%s;\n", noteVersion(named, m.Version))
	}
	return b.String(), nil
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// schemaVersion returns 0 when there are no tables.
func (db *DB) schemaVersion(ctx context.Context, q querier) (int, error) {
	var tables int
	if err := q.QueryRowContext(ctx, db.migrateSQL.Query("any_table"), db.prefix+"meta").Scan(&tables); err != nil {
		return 0, translate(err)
	}
	if tables == 0 {
		return 0, nil
	}
	var value string
	err := q.QueryRowContext(ctx, db.migrateSQL.Query("version")).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, translate(err)
	}
	return sqlcore.ParseVersion(db.prefix+"meta", value)
}

// checkSchema refuses tables that are missing, older than this version knows,
// or more than one version ahead of it. It asks until the answer is good.
func (db *DB) checkSchema(ctx context.Context) error {
	if db.ready.Load() {
		return nil
	}
	status, err := db.SchemaStatus(ctx)
	if err == nil {
		err = status.Err()
	}
	if err == nil {
		db.ready.Store(true)
	}
	return err
}
