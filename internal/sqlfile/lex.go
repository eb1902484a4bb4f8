package sqlfile

import (
	"iter"
	"strings"
)

// A kind is a class of tokens, as far as this package distinguishes them.
type kind int

const (
	symbol       kind = iota // one byte that is nothing of the below
	space                    // a run of white space
	word                     // a keyword, an unquoted name or a number
	literal                  // 'text' or E'text'
	quotedName               // "name" or `name`
	dollarQuoted             // $tag$text$tag$
	lineComment              // from -- up to, not including, the end of the line
	blockComment             // /* text */
)

// A token is text[start:end] of the text given to tokens.
type token struct {
	kind       kind
	start, end int
	unclosed   bool // the text ended before the closing quote or comment mark
}

// tokens cuts text into tokens that follow one another without a gap. Any text
// has tokens: an open quote or comment reaches to the end and is unclosed.
func tokens(text string) iter.Seq[token] {
	return func(yield func(token) bool) {
		for at := 0; at < len(text); {
			k, n, closed := scan(text[at:])
			if !yield(token{kind: k, start: at, end: at + n, unclosed: !closed}) {
				return
			}
			at += n
		}
	}
}

// scan returns kind and length of the token that s, not empty, starts with.
func scan(s string) (k kind, n int, closed bool) {
	switch c := s[0]; {
	case isSpace(c):
		return space, run(s, isSpace), true
	case isWord(c) && c != '$':
		n = run(s, isWord)
		if n == 1 && (c == 'E' || c == 'e') && strings.HasPrefix(s[1:], "'") {
			n, closed = quoted(s[1:], true)
			return literal, 1 + n, closed
		}
		return word, n, true
	case c == '\'':
		n, closed = quoted(s, false)
		return literal, n, closed
	case c == '"' || c == '`':
		n, closed = quoted(s, false)
		return quotedName, n, closed
	case c == '$' && dollarTag(s) != "":
		tag := dollarTag(s)
		n, closed = through(s, tag, len(tag))
		return dollarQuoted, n, closed
	case strings.HasPrefix(s, "--"):
		if n = strings.IndexByte(s, '\n'); n < 0 {
			n = len(s)
		}
		return lineComment, n, true
	case strings.HasPrefix(s, "/*!"), strings.HasPrefix(s, "/*+"):
		// The server obeys what stands in here, so it is read as code.
		return symbol, 3, true
	case strings.HasPrefix(s, "/*"):
		n, closed = through(s, "*/", 2)
		return blockComment, n, closed
	}
	return symbol, 1, true
}

func isSpace(c byte) bool {
	return c == ' ' || '\t' <= c && c <= '\r'
}

// isWord includes the $ that PostgreSQL and MySQL allow inside a name, and
// every byte of a letter outside ASCII.
func isWord(c byte) bool {
	return c == '$' || isTag(c)
}

func isTag(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || isDigit(c) || c >= 0x80
}

func isDigit(c byte) bool {
	return '0' <= c && c <= '9'
}

// run counts the leading bytes of s that are in the class.
func run(s string, in func(byte) bool) int {
	n := 0
	for n < len(s) && in(s[n]) {
		n++
	}
	return n
}

// quoted measures the quotation s starts with; a doubled quote does not end it.
func quoted(s string, backslash bool) (n int, closed bool) {
	quote := s[0]
	for i := 1; i < len(s); i++ {
		switch {
		case backslash && s[i] == '\\':
			i++
		case s[i] != quote:
		case i+1 < len(s) && s[i+1] == quote:
			i++
		default:
			return i + 1, true
		}
	}
	return len(s), false
}

// dollarTag returns the $tag$ that s starts with. It is empty for $1 and for
// $name, which are parameters.
func dollarTag(s string) string {
	n := 1 + run(s[1:], isTag)
	if n == len(s) || s[n] != '$' || isDigit(s[1]) {
		return ""
	}
	return s[:n+1]
}

// through measures s up to and including the first mark at or after from.
func through(s, mark string, from int) (n int, closed bool) {
	i := strings.Index(s[from:], mark)
	if i < 0 {
		return len(s), false
	}
	return from + i + len(mark), true
}
