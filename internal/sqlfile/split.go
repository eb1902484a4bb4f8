package sqlfile

import (
	"fmt"
	"strings"
)

// Statements cuts a script into its statements, in order and without the
// semicolons between them. A statement keeps the comments inside it and loses
// those around it. Semicolons in quotes, comments and the BEGIN ... END bodies
// of triggers and routines separate nothing. An open quote, comment or BEGIN is
// an error that names the line.
func Statements(script string) ([]string, error) {
	spans, bad := split(script)
	if bad != nil {
		return nil, fmt.Errorf("sqlfile: line %d: %s", lineOf(script, bad.at), bad.what)
	}
	var stmts []string
	for _, s := range spans {
		stmts = append(stmts, script[s.start:s.end])
	}
	return stmts, nil
}

// A syntaxError is an error at one position of a text.
type syntaxError struct {
	at   int
	what string
}

// A span is one statement, from its first token that is no comment to its last.
type span struct{ start, end int }

func split(text string) ([]span, *syntaxError) {
	var (
		spans []span
		stmt  span // empty until its first token
		body  nesting
	)
	for tok := range tokens(text) {
		if tok.unclosed {
			return nil, &syntaxError{tok.start, unclosed[tok.kind]}
		}
		if tok.kind == space || tok.kind == lineComment || tok.kind == blockComment {
			continue
		}
		body.take(text[tok.start:tok.end])
		if text[tok.start] != ';' || body.depth > 0 {
			if stmt == (span{}) {
				stmt.start = tok.start
			}
			stmt.end = tok.end
			continue
		}
		if stmt != (span{}) {
			spans = append(spans, stmt)
		}
		stmt, body = span{}, nesting{}
	}
	body.take("") // settles an END that was the last word
	if body.depth > 0 {
		return nil, &syntaxError{stmt.start, "a BEGIN or CASE of this statement has no END"}
	}
	if stmt != (span{}) {
		spans = append(spans, stmt)
	}
	return spans, nil
}

var unclosed = map[kind]string{
	literal:      "this string has no closing quote",
	quotedName:   "this quoted name has no closing quote",
	dollarQuoted: "this dollar quote is never closed",
	blockComment: "this comment is never closed",
}

// nesting follows one statement, token by token, and knows whether a semicolon
// stands inside the body of a trigger or routine. Elsewhere BEGIN is a complete
// statement and opens nothing.
type nesting struct {
	first   string // first token of the statement
	prev    string // token before this one
	routine bool
	depth   int    // open BEGINs and CASEs
	endedBy string // token before an END that is not settled yet, else empty
}

func (n *nesting) take(tok string) {
	tok = strings.ToUpper(tok)
	prev := n.prev
	n.prev = tok
	if n.endedBy != "" {
		before := n.endedBy
		n.endedBy = ""
		switch tok {
		case "IF", "WHILE", "LOOP", "REPEAT":
			return // END IF closes an IF, and those are not counted
		case "FOR":
			// END FOR closes a loop, whose last statement ended in a semicolon;
			// CASE ... END FOR UPDATE does not.
			if before == ";" {
				return
			}
		}
		n.depth--
		if tok == "CASE" {
			return // END CASE
		}
	}
	if n.first == "" {
		n.first = tok
	}
	if n.first != "CREATE" || prev == "." {
		return
	}
	switch tok {
	case "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT":
		n.routine = true
	case "BEGIN", "CASE":
		if n.routine {
			n.depth++
		}
	case "END":
		if n.depth > 0 {
			n.endedBy = prev
		}
	}
}
