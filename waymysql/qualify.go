package waymysql

import (
	"fmt"
	"regexp"

	"github.com/waybill-go/waybill/internal/sqlfile"
)

// schemaForm are the names of databases that can be quoted into any statement.
var schemaForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)

// checkNames refuses others.
func checkNames(schema, prefix string) error {
	if !sqlfile.ValidPrefix(prefix) {
		return fmt.Errorf("waymysql: table prefix %q: use lower case letters, digits and '_'", prefix)
	}
	if !schemaForm.MatchString(schema) {
		return fmt.Errorf("waymysql: database %q: use letters, digits, '_' and '-'", schema)
	}
	return nil
}

// qualify returns a function that puts database and prefix in the place of those with which
// the SQL files name tables and procedures.
func qualify(schema, prefix string) func(text string) string {
	return func(text string) string {
		return sqlfile.Qualify(text, "app."+sqlfile.Prefix, qualified(schema, prefix), prefix)
	}
}

// qualified begins the name of every table and procedure.
func qualified(schema, prefix string) string { return "`" + schema + "`." + prefix }
