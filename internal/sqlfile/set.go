package sqlfile

import (
	"fmt"
	"regexp"
	"strings"
)

// A Set holds the named statements of one file. It never changes, so it may be
// used concurrently. The zero Set is empty.
type Set struct {
	file    string
	queries map[string]string
}

// MustParse is Parse for embedded files, whose errors are those of the program:
// it panics where Parse returns an error.
func MustParse(file, text string) Set {
	s, err := Parse(file, text)
	if err != nil {
		panic(err)
	}
	return s
}

// Parse reads text as a file of named statements. A section starts with a line
// `-- name: claim` and holds one statement; its comments, and those ahead of
// the first section, are for the reader. The file's name is for error messages,
// which give it together with the line.
func Parse(file, text string) (Set, error) {
	s := Set{file: file, queries: map[string]string{}}
	fail := func(at int, format string, args ...any) (Set, error) {
		return Set{}, fmt.Errorf("sqlfile: %s:%d: %s", file, lineOf(text, at), fmt.Sprintf(format, args...))
	}
	secs, bad := sections(text)
	if bad != nil {
		return fail(bad.at, "%s", bad.what)
	}
	for _, sec := range secs {
		body := text[sec.body:sec.end]
		stmts, bad := split(body)
		switch {
		case bad != nil:
			return fail(sec.body+bad.at, "%s", bad.what)
		case sec.name == "" && len(stmts) == 0:
			continue // the heading of the file
		case sec.name == "":
			return fail(stmts[0].start, "a statement ahead of the first `-- name: ...` line")
		case s.queries[sec.name] != "":
			return fail(sec.start, "%q is already the name of another statement", sec.name)
		case len(stmts) == 0:
			return fail(sec.start, "section %q has no statement", sec.name)
		case len(stmts) > 1:
			return fail(sec.body+stmts[1].start, "a second statement in section %q; give it a `-- name: ...` line of its own", sec.name)
		}
		s.queries[sec.name] = withoutComments(body[stmts[0].start:stmts[0].end])
	}
	return s, nil
}

// Query returns the statement of that name, without comments and without a
// closing semicolon. It panics on a name the file does not have.
func (s Set) Query(name string) string {
	q, ok := s.queries[name]
	if !ok {
		panic(fmt.Sprintf("sqlfile: %s has no statement %q", s.file, name))
	}
	return q
}

// A section is text[body:end], introduced by the line that begins at start. The
// first section of a file has no name: it is what stands ahead of the others.
type section struct {
	name             string
	start, body, end int
}

var headerLine = regexp.MustCompile(`^-- name: ([a-z][a-z0-9_]*)\s*$`)

func sections(text string) ([]section, *syntaxError) {
	secs := []section{{}}
	for tok := range tokens(text) {
		last := &secs[len(secs)-1]
		last.end = tok.end
		comment := text[tok.start:tok.end]
		if tok.kind != lineComment || !strings.HasPrefix(strings.TrimLeft(comment, "- \t"), "name:") {
			continue
		}
		header := headerLine.FindStringSubmatch(comment)
		if header == nil || tok.start > 0 && text[tok.start-1] != '\n' {
			// Read as a plain comment, a misspelt header would join two statements.
			return nil, &syntaxError{tok.start, "a section starts with a line like `-- name: claim`, in lower case and not indented"}
		}
		last.end = tok.start
		secs = append(secs, section{name: header[1], start: tok.start, body: tok.end, end: tok.end})
	}
	return secs, nil
}

// withoutComments drops the comments of a statement, and the lines that held
// nothing else.
func withoutComments(stmt string) string {
	var out []byte
	for tok := range tokens(stmt) {
		switch tok.kind {
		case lineComment:
			out = trimSpaceRight(out)
		case blockComment:
			out = append(out, ' ') // it may be all that keeps two words apart
		default:
			out = append(out, stmt[tok.start:tok.end]...)
		}
	}
	return string(out)
}

func trimSpaceRight(b []byte) []byte {
	for len(b) > 0 && isSpace(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

func lineOf(text string, at int) int {
	return 1 + strings.Count(text[:at], "\n")
}
