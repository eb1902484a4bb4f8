package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// written is the text of expanded values as it stands in the file, for errors: what an
// environment variable or another file has put in may be a secret. It belongs to the
// reading of one file, since a Config that kept it would print it.
type written map[valueAt]string

// A valueAt is an expanded value and its dotted key.
type valueAt struct{ path, value string }

// show quotes a value for an error.
func (w written) show(at keyPath, value string) string {
	if text, ok := w[valueAt{at.String(), value}]; ok {
		value = text
	}
	return quote(value)
}

var (
	quoted       = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	replacements = regexp.MustCompile(`\$\{[^}]*\}`)
)

// onlyWritten masks the quoted words of an error about an expanded DSN, but for its scheme,
// the names of options, and what stands in the file as text.
func onlyWritten(problem, text, expanded string) string {
	text = replacements.ReplaceAllString(text, " ")
	scheme, _, _ := strings.Cut(expanded, "://")
	return quoted.ReplaceAllStringFunc(problem, func(q string) string {
		word, err := strconv.Unquote(q)
		if err == nil && (word == scheme || strings.Contains(text, strings.TrimSuffix(word, "…")) || isSchemeOrOption(word)) {
			return q
		}
		return `"${...}"`
	})
}

func isSchemeOrOption(word string) bool {
	for name, s := range schemes {
		if word == name || slices.Contains(optionNames(s.options), word) {
			return true
		}
	}
	return false
}
