package waymysql

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/waybill-go/waybill/internal/sqlfile"
)

// schemaForm are the names of databases that can be quoted into any statement.
var schemaForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)

func badPrefix(prefix string) error {
	return fmt.Errorf("waymysql: table prefix %q: use lower case letters, digits and '_'", prefix)
}

func badSchema(schema string) error {
	return fmt.Errorf("waymysql: database %q: use letters, digits, '_' and '-'", schema)
}

// written is how the SQL files name tables and procedures.
const written = "app." + sqlfile.Prefix

// qualify puts database and prefix in the place of those the SQL files have. An
// index is not qualified where it is named: it gets the prefix alone.
func qualify(text, schema, prefix string) string {
	const mark = "\x00"
	text = sqlfile.Rewrite(strings.ReplaceAll(text, written, mark), prefix)
	return strings.ReplaceAll(text, mark, qualified(schema, prefix))
}

// qualified begins the name of every table and procedure.
func qualified(schema, prefix string) string { return "`" + schema + "`." + prefix }
