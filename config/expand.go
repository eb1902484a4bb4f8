package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// An expander replaces ${...} in the values of a file. The replacement is not expanded
// again, so a secret may hold any character.
type expander struct {
	getenv func(string) (string, bool)
	dir    string // base directory of ${file:relative}
}

var variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand replaces
//
//	${VAR}           the environment variable; unset is an error
//	${VAR:-default}  the same, or default where it is unset or empty
//	${file:path}     the file, without one newline at its end
//	$$               a dollar sign
//
// in s and returns the origins of the parts. Any other dollar sign is an error.
func (x expander) expand(s string) (expanded string, origins []string, err *Error) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "$")
		b.WriteString(before)
		if !found {
			return b.String(), origins, nil
		}
		if rest, ok := strings.CutPrefix(after, "$"); ok {
			b.WriteByte('$')
			s = rest
			continue
		}
		inner, ok := strings.CutPrefix(after, "{")
		if !ok {
			return "", nil, problem("a bare $", "write $$ for a dollar sign, ${NAME} for a variable")
		}
		inner, rest, ok := strings.Cut(inner, "}")
		if !ok {
			return "", nil, problem("${ without }", "write $$ for a dollar sign")
		}
		part, origin, err := x.resolve(inner)
		if err != nil {
			return "", nil, err
		}
		b.WriteString(part)
		if origin != "" {
			origins = append(origins, origin)
		}
		s = rest
	}
}

// resolve returns the replacement of the text between the braces.
func (x expander) resolve(inner string) (part, origin string, err *Error) {
	if path, ok := strings.CutPrefix(inner, "file:"); ok {
		return x.readFile(path)
	}
	variable, otherwise, hasDefault := strings.Cut(inner, ":-")
	if !variableForm.MatchString(variable) {
		return "", "", problem("not a variable name between ${ and }", "write ${NAME}, ${NAME:-default} or ${file:path}")
	}
	if strings.Contains(strings.ReplaceAll(otherwise, "$$", ""), "$") {
		return "", "", problem(fmt.Sprintf("a $ in the default of ${%s}", variable), "defaults are not expanded; write $$ for a dollar sign")
	}
	v, set := x.getenv(variable)
	switch {
	case set && (v != "" || !hasDefault):
		return v, "environment " + variable, nil
	case hasDefault:
		return strings.ReplaceAll(otherwise, "$$", "$"), "", nil
	}
	return "", "", problem(fmt.Sprintf("the environment variable %s is not set", variable), fmt.Sprintf("set it, or write ${%s:-default}", variable))
}

func (x expander) readFile(path string) (content, origin string, err *Error) {
	const most = 1 << 20
	if path == "" {
		return "", "", problem("${file:} without a path", "")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(x.dir, path)
	}
	data, readErr := readAtMost(path, most)
	if readErr != nil {
		hint := mayRead
		if errors.Is(readErr, fs.ErrNotExist) {
			hint = "a relative path begins at the directory of the configuration"
		}
		e := problem(readErr.Error(), hint)
		e.cause = readErr
		return "", "", e
	}
	if len(data) > most {
		return "", "", problem(fmt.Sprintf("%s holds more than %d bytes", path, most), "")
	}
	s := strings.TrimSuffix(string(data), "\n")
	return strings.TrimSuffix(s, "\r"), "file " + path, nil
}

// mayRead is the remedy for a file that is there and cannot be read.
const mayRead = "give the path of a file that the user of this process may read"

// readAtMost reads up to most+1 bytes: one too many shows that there are more.
func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	return io.ReadAll(io.LimitReader(f, most+1))
}
