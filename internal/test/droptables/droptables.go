// Package droptables removes the tables and routines of a demo or a benchmark from
// a database of MySQL or MariaDB, which has no schemas to drop as a whole.
package droptables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// WithPrefix drops the tables, procedures and functions of the connection's
// database whose names begin with prefix.
func WithPrefix(ctx context.Context, db *sql.DB, prefix string) error {
	if prefix == "" {
		return errors.New("droptables: no prefix")
	}
	rows, err := db.QueryContext(ctx, `SELECT 'TABLE', table_name FROM information_schema.tables
		WHERE table_schema = DATABASE() AND LEFT(table_name, CHAR_LENGTH(?)) = ?
		UNION ALL SELECT routine_type, routine_name FROM information_schema.routines
		WHERE routine_schema = DATABASE() AND LEFT(routine_name, CHAR_LENGTH(?)) = ?`, prefix, prefix, prefix, prefix)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var statements []string
	for rows.Next() {
		var kind, name string
		if err := rows.Scan(&kind, &name); err != nil {
			return err
		}
		statements = append(statements, fmt.Sprintf("DROP %s `%s`", kind, name))
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}
