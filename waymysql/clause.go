package waymysql

import (
	"fmt"
	"strings"
)

// A clause is SQL of a file, with the arguments of its placeholders.
type clause struct {
	text string
	args []any
}

// fill writes numbers and clauses in the place of placeholders. Other arguments keep
// theirs, for the driver.
func fill(text string, args ...any) clause {
	var b strings.Builder
	var rest []any
	for _, arg := range args {
		before, after, ok := strings.Cut(text, "?")
		if !ok {
			panic("waymysql: too many arguments for " + text)
		}
		b.WriteString(before)
		switch arg := arg.(type) {
		case clause:
			b.WriteString(arg.text)
			rest = append(rest, arg.args...)
		case int, int16, int64:
			fmt.Fprint(&b, arg)
		default:
			b.WriteByte('?')
			rest = append(rest, arg)
		}
		text = after
	}
	b.WriteString(text)
	return clause{b.String(), rest}
}

// unionAll makes one statement of branches.
func unionAll(branches []clause) clause { return joined(branches, " UNION ALL ") }

// and makes one condition of several, or of none.
func and(conditions []clause) clause {
	if len(conditions) == 0 {
		return clause{text: "TRUE"}
	}
	return joined(conditions, " AND ")
}

// or makes one condition of some.
func or(conditions []clause) clause { return joined(conditions, " OR ") }

func joined(all []clause, by string) clause {
	var b strings.Builder
	var args []any
	for i, c := range all {
		if i > 0 {
			b.WriteString(by)
		}
		b.WriteString(c.text)
		args = append(args, c.args...)
	}
	return clause{b.String(), args}
}

// numbers are the values of an IN list.
func numbers(of []int16) clause { return clause{text: join(of)} }

// literals are bytes as values of an IN list: raw ones in a statement's text break the
// server's views of running statements.
func literals(of ...string) clause {
	var b strings.Builder
	for i, s := range of {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "X'%x'", s)
	}
	return clause{text: b.String()}
}
