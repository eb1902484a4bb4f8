package sqlfile

import (
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// A Set holds the named statements of one file. It never changes, so it may be
// used concurrently. The zero Set is empty.
type Set struct {
	file    string
	queries map[string]string
}

// MustRead reads the file sql/NAME.sql of named statements, with words replaced that are
// pairs of an old and a new one, and then rewritten.
func MustRead(files fs.FS, name string, rewrite func(text string) string, replaced ...string) Set {
	text, err := fs.ReadFile(files, "sql/"+name+".sql")
	if err != nil {
		panic(err)
	}
	return MustParse(name+".sql", rewrite(strings.NewReplacer(replaced...).Replace(string(text))))
}

// MustParse reads text as a file of named statements. A section starts with a line
// `-- name: claim` and holds one statement; its comments, and those ahead of the first
// section, are for the reader. The file's name is for the messages of panics.
func MustParse(file, text string) Set {
	s := Set{file: file, queries: map[string]string{}}
	sections := strings.Split("\n"+text, "\n-- name: ")
	if strings.TrimSpace(withoutComments(sections[0])) != "" {
		panic(fmt.Sprintf("sqlfile: %s begins with a statement without a name", file))
	}
	for _, section := range sections[1:] {
		name, body, _ := strings.Cut(section, "\n")
		statement := strings.TrimSuffix(strings.TrimSpace(withoutComments(body)), ";")
		switch {
		case statement == "":
			panic(fmt.Sprintf("sqlfile: section %q of %s has no statement", name, file))
		case s.queries[name] != "":
			panic(fmt.Sprintf("sqlfile: section %q of %s is there twice", name, file))
		case slices.ContainsFunc(slices.Collect(tokens(statement)), func(token string) bool { return token == ";" || token == "'" }):
			panic(fmt.Sprintf("sqlfile: section %q of %s has a second statement or an open string", name, file))
		}
		s.queries[name] = statement
	}
	return s
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

// withoutComments drops comments, and the lines that held nothing else.
func withoutComments(text string) string {
	var out []byte
	for token := range tokens(text) {
		if strings.HasPrefix(token, "--") {
			out = bytes.TrimRight(out, " \t\r\n")
		} else {
			out = append(out, token...)
		}
	}
	return string(out)
}
