package config

import (
	"fmt"
	"strconv"
	"strings"
)

// An Error is one mistake in a DSN or a configuration. Several are joined: find them
// by errors.As, or as the lines of the text.
type Error struct {
	// File is the name of the file, empty without one.
	File string
	// Line counts from 1. Zero means that no line is known.
	Line int
	// Path is the dotted key, such as transports.events.dsn. Keys that hold
	// dots themselves are quoted. It is "dsn" for an error of ParseDSN.
	Path string
	// Value is the text at fault as it was written, before expansion. It is
	// empty where it could hold a credential.
	Value string
	// Problem is the mistake, Hint its remedy (may be empty).
	Problem, Hint string

	cause error
}

// Error is one line: file and line, path, problem, and the hint in brackets.
func (e *Error) Error() string {
	var b strings.Builder
	switch {
	case e.File != "" && e.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	case e.Line > 0:
		fmt.Fprintf(&b, "line %d: ", e.Line)
	case e.File != "":
		b.WriteString(e.File + ": ")
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Problem)
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

// Unwrap returns the cause, such as fs.ErrNotExist for a missing file.
func (e *Error) Unwrap() error { return e.cause }

// unwrapAll lists the *Errors of err, which ParseDSN joined.
func unwrapAll(err error) []*Error {
	var all []*Error
	switch e := err.(type) {
	case *Error:
		all = append(all, e)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, unwrapAll(one)...)
		}
	}
	return all
}

// mask replaces text that is or may hold a credential.
const mask = "***"

// safe returns a word for use in an error. A word that looks like a misplaced DSN may
// hold a password and becomes the mask; a long word is cut.
func safe(word string) string { return cut(word, 64) }

// cut is safe for words of up to most bytes.
func cut(word string, most int) string {
	if strings.Contains(word, "://") || strings.Contains(word, "@") {
		return mask
	}
	if len(word) <= most {
		return word
	}
	return strings.ToValidUTF8(word[:most], "") + "…"
}

func quote(word string) string { return strconv.Quote(safe(word)) }
