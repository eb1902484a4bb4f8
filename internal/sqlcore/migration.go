package sqlcore

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill/admin"
)

// A Migration changes the tables from Version-1 to Version. It is never edited after
// its release.
type Migration struct {
	Version int
	Name    string
	SQL     string
}

// Migrations are all migrations of a database, in order.
type Migrations []Migration

// ReadMigrations reads the files sql/schema/*.sql, whose names begin with a version of
// four digits, and gives each text to rewrite.
func ReadMigrations(files fs.FS, rewrite func(text string) string) (Migrations, error) {
	names, err := fs.Glob(files, "sql/schema/*.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	all := make(Migrations, 0, len(names))
	for _, file := range names {
		text, err := fs.ReadFile(files, file)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(path.Base(file), ".sql")
		version, err := strconv.Atoi(name[:4])
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
		all = append(all, Migration{version, name, rewrite(string(text))})
	}
	return all, nil
}

// Wanted is the version of the last migration.
func (all Migrations) Wanted() int { return all[len(all)-1].Version }

// After returns the migrations of tables with a version.
func (all Migrations) After(version int) Migrations {
	i := slices.IndexFunc(all, func(m Migration) bool { return m.Version > version })
	if i < 0 {
		return nil
	}
	return all[i:]
}

// Status compares tables of a version with the last migration.
func (all Migrations) Status(database, prefix string, version int) admin.SchemaStatus {
	status := admin.SchemaStatus{Database: database, Prefix: prefix, Version: version, Wanted: all.Wanted()}
	for _, m := range all.After(version) {
		status.Pending = append(status.Pending, m.Name)
	}
	return status
}

// ParseVersion reads the schema_version of a table.
func ParseVersion(table, value string) (int, error) {
	version, err := strconv.Atoi(value)
	if err != nil {
		return 0, fmt.Errorf("%s: schema_version %q is not a number", table, value)
	}
	return version, nil
}
