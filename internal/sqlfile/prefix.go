package sqlfile

import (
	"fmt"
	"regexp"
	"strings"
)

// Prefix is the table prefix SQL files are written with.
const Prefix = "waybill_"

var validPrefix = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,30}$`)

// ValidPrefix reports whether prefix is safe to put in front of a table name:
// a lower-case letter or underscore, then up to 30 of those or digits.
func ValidPrefix(prefix string) bool {
	return validPrefix.MatchString(prefix)
}

// Rewrite replaces Prefix by prefix where an identifier starts with it, quoted
// or not, also inside the dollar-quoted body of a function. Strings, comments
// and parameters (:name, @name, $name) stay as they are, so a table's name that
// the database needs as a string is better passed as a parameter.
//
// Rewrite panics if prefix is not valid: check a configured prefix with
// ValidPrefix first.
func Rewrite(sql, prefix string) string {
	if !ValidPrefix(prefix) {
		panic(fmt.Sprintf("sqlfile: invalid table prefix %q", prefix))
	}
	return rewrite(sql, prefix)
}

func rewrite(sql, prefix string) string {
	var out strings.Builder
	for tok := range tokens(sql) {
		text := sql[tok.start:tok.end]
		switch tok.kind {
		case word:
			if rest, ok := strings.CutPrefix(text, Prefix); ok && !afterSigil(sql, tok.start) {
				text = prefix + rest
			}
		case quotedName:
			if rest, ok := strings.CutPrefix(text[1:], Prefix); ok {
				text = text[:1] + prefix + rest
			}
		case dollarQuoted:
			if tag := dollarTag(text); !tok.unclosed {
				text = tag + rewrite(text[len(tag):len(text)-len(tag)], prefix) + tag
			}
		}
		out.WriteString(text)
	}
	return out.String()
}

// afterSigil reports whether the word at i is the name of a parameter. The cast
// in x::waybill_state is none.
func afterSigil(sql string, i int) bool {
	before := sql[:i]
	return strings.HasSuffix(before, "$") || strings.HasSuffix(before, "@") ||
		strings.HasSuffix(before, ":") && !strings.HasSuffix(before, "::")
}
