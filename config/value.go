package config

import (
	"fmt"
	"slices"
	"time"
)

// The accessors below return the value of an option in the DSN, or otherwise the
// fallback. They panic for an option that the scheme does not have, or has with
// another type: that is a bug in the program.

// Duration returns a duration option.
func (d DSN) Duration(option string, otherwise time.Duration) time.Duration {
	return value(d, option, otherwise, durationKind)
}

// Int returns an int option.
func (d DSN) Int(option string, otherwise int) int {
	return value(d, option, otherwise, intKind)
}

// Bool returns a bool option.
func (d DSN) Bool(option string, otherwise bool) bool {
	return value(d, option, otherwise, boolKind)
}

// Enum returns an enum option: one of the words of docs/config.md.
func (d DSN) Enum(option, otherwise string) string {
	return value(d, option, otherwise, enumKind)
}

// Text returns a string option.
func (d DSN) Text(option, otherwise string) string {
	return value(d, option, otherwise, textKind)
}

// List returns a copy of a list option, nil if the DSN does not have it.
func (d DSN) List(option string) []string {
	return slices.Clone(value[[]string](d, option, nil, listKind))
}

// DSN returns a dsn option and whether the DSN has it.
func (d DSN) DSN(option string) (DSN, bool) {
	v := value(d, option, DSN{}, dsnKind)
	return v, !v.IsZero()
}

// Takes reports whether DSNs of a scheme take an option of that name.
func Takes(scheme, option string) bool {
	return slices.Contains(optionNames(schemes[scheme].options), option)
}

func value[T any](d DSN, name string, otherwise T, want kind) T {
	known := func(o option) bool { return o.name == name && o.kind == want }
	if !slices.ContainsFunc(schemes[d.Scheme].options, known) {
		panic(fmt.Sprintf("config: scheme %q has no %s option %q", d.Scheme, want, name))
	}
	if v, ok := d.options[name].(T); ok {
		return v
	}
	return otherwise
}
