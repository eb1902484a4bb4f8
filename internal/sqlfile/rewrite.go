// Package sqlfile reads the SQL files of a database, which are part of the program, and
// puts the configured prefix of tables in the place of the one that they are written with.
//
// It knows as much SQL as these files have: comments are written with --, strings stand
// between single quotes, and a quote in a string is doubled, not escaped by a backslash.
package sqlfile

import (
	"fmt"
	"iter"
	"regexp"
	"strings"
)

// Prefix is the table prefix SQL files are written with.
const Prefix = "waybill_"

var validPrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,30}$`)

// ValidPrefix reports whether prefix is safe to put in front of a table name:
// a lower-case letter or underscore, then up to 30 of those or digits.
func ValidPrefix(prefix string) bool { return validPrefix.MatchString(prefix) }

// tokens cuts text into comments, strings (one with doubled quotes is several), the marks of
// casts, words with the sign of a parameter, and other bytes.
func tokens(text string) iter.Seq[string] {
	return func(yield func(token string) bool) {
		for len(text) > 0 {
			n := 1
			switch {
			case strings.HasPrefix(text, "--"):
				n = len(text) - len(strings.TrimLeftFunc(text, func(r rune) bool { return r != '\n' }))
			case text[0] == '\'':
				n += strings.IndexByte(text[1:], '\'') + 1 // an open one is a byte
			case strings.HasPrefix(text, "::"):
				n = 2
			case isWord(text[0]) || strings.IndexByte(":@$", text[0]) >= 0:
				for n < len(text) && isWord(text[n]) {
					n++
				}
			}
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

func isWord(c byte) bool {
	return c == '_' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// Rewrite replaces Prefix by prefix where an identifier starts with it, quoted
// or not, also inside the body of a function. Strings, comments and parameters
// (:name, @name, $name) stay as they are, so a table's name that the database
// needs as a string is better passed as a parameter.
//
// Rewrite panics if prefix is not valid: check a configured prefix with
// ValidPrefix first.
func Rewrite(sql, prefix string) string {
	if !ValidPrefix(prefix) {
		panic(fmt.Sprintf("sqlfile: invalid table prefix %q", prefix))
	}
	var out strings.Builder
	for token := range tokens(sql) {
		if rest, ok := strings.CutPrefix(token, Prefix); ok {
			token = prefix + rest
		}
		out.WriteString(token)
	}
	return out.String()
}

// Qualify is Rewrite for files that name their tables and routines with a schema: written is
// how these names start, and qualified what replaces it, also in strings. The name of an
// index has no schema where it is created, and gets the prefix alone.
func Qualify(sql, written, qualified, prefix string) string {
	const mark = "\x00"
	return strings.ReplaceAll(Rewrite(strings.ReplaceAll(sql, written, mark), prefix), mark, qualified)
}

// boundary matches the end of a statement of a script, with the comments and empty lines
// between it and the beginning of the next one.
var boundary = regexp.MustCompile(`(?:\A|;\n)(?:--.*\n|\n)*(ALTER|CREATE|DELETE|DROP|INSERT|UPDATE|\z)`)

// Statements cuts a script into its statements, in order, without the comments and
// semicolons between them. Each begins at the start of a line with a word that boundary
// has; in the body of a routine, lines are indented or begin with another word.
func Statements(script string) []string {
	var all []string
	begin := 0
	for _, at := range boundary.FindAllStringSubmatchIndex(script, -1) {
		if at[0] > 0 {
			all = append(all, script[begin:at[0]])
		}
		begin = at[2]
	}
	if begin < len(script) {
		all = append(all, script[begin:])
	}
	return all
}
