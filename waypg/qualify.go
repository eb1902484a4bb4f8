package waypg

import (
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"regexp"

	"github.com/waybill-go/waybill/internal/sqlfile"
)

// schemaForm are the names that can be quoted into any statement, function
// bodies included.
var schemaForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,62}$`)

// checkNames refuses others.
func checkNames(schema, prefix string) error {
	if !sqlfile.ValidPrefix(prefix) {
		return fmt.Errorf("waypg: table prefix %q: use lower case letters, digits and '_'", prefix)
	}
	if !schemaForm.MatchString(schema) {
		return fmt.Errorf("waypg: schema %q: use letters, digits, '_' and '-'", schema)
	}
	return nil
}

// qualify returns a function that puts schema and prefix in the place of those with which
// the SQL files name tables and functions.
func qualify(schema, prefix string) func(text string) string {
	return func(text string) string {
		return sqlfile.Qualify(text, "public."+sqlfile.Prefix, qualified(schema, prefix), prefix)
	}
}

// mustNamed returns the statements of an embedded file, with replaced words such as the
// names of tables: pairs of an old and a new one.
func mustNamed(file, schema, prefix string, replaced ...string) sqlfile.Set {
	return sqlfile.MustRead(sqlFiles, file, qualify(schema, prefix), replaced...)
}

// qualified begins the name of every table and function.
func qualified(schema, prefix string) string { return `"` + schema + `".` + prefix }

// namespace is the first number of all advisory locks of one set of tables.
func namespace(database, schema, prefix string) int32 {
	sum := md5.Sum([]byte(database + "/" + qualified(schema, prefix)))
	return int32(binary.BigEndian.Uint32(sum[:4]))
}

// lockNumber is the second number of the advisory lock of a bucket; transport
// 0 is that of all queues.
func lockNumber(transport, bucket int16) int32 { return int32(transport)<<16 + int32(bucket) }
