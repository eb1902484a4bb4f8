package sqlcore

import (
	"errors"
	"fmt"
	"io/fs"
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

// MustReadMigrations reads the files of the directory sql/schema, whose names begin with a
// version of four digits, and gives each text to rewrite. It panics on errors: the files are
// part of the program.
func MustReadMigrations(files fs.FS, rewrite func(text string) string) (all Migrations) {
	entries, err := fs.ReadDir(files, "sql/schema") // in order
	for _, e := range entries {
		text, unread := fs.ReadFile(files, "sql/schema/"+e.Name())
		version, unnamed := strconv.Atoi(e.Name()[:4])
		err = errors.Join(err, unread, unnamed)
		all = append(all, Migration{version, strings.TrimSuffix(e.Name(), ".sql"), rewrite(string(text))})
	}
	if err != nil {
		panic(err)
	}
	return all
}

// Wanted is the version of the last migration.
func (all Migrations) Wanted() int { return all[len(all)-1].Version }

// After returns the migrations of tables with a version.
func (all Migrations) After(version int) Migrations {
	return slices.DeleteFunc(slices.Clone(all), func(m Migration) bool { return m.Version <= version })
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
		err = fmt.Errorf("%s: schema_version %q is not a number", table, value)
	}
	return version, err
}
