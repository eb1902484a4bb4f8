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
func migrations(schema, prefix string) sqlcore.Migrations {
	return sqlcore.MustReadMigrations(sqlFiles, qualify(schema, prefix))
}

// SchemaStatus compares the tables with this version's migrations. It refuses unknown
// buckets, as every other use does.
func (db *DB) SchemaStatus(ctx context.Context) (admin.SchemaStatus, error) {
	all := migrations(db.schema, db.prefix)
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
	if err := checkNames(schema, prefix); err != nil {
		return "", err
	}
	all := migrations(schema, prefix)
	named := mustNamed("migrate", schema, prefix)
	var b strings.Builder
	b.WriteString("DELIMITER //\n\n") // bodies of procedures have semicolons
	for _, m := range all {
		fmt.Fprintf(&b, "-- %s\n", m.Name)
		for _, s := range append(sqlfile.Statements(m.SQL), noteVersion(named, m.Version)) {
			fmt.Fprintf(&b, "%s //\n\n", s)
		}
	}
	b.WriteString("DELIMITER ;\n")
	return b.String(), nil
}

// schemaVersion returns 0 when there are no tables.
func (db *DB) schemaVersion(ctx context.Context, q executor) (version int, begun steps, err error) {
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
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
