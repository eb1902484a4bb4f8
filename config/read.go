package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/suggest"
)

// A reader fills a Config from a tree and collects all mistakes.
type reader struct {
	file    string
	expand  func(string) (string, []string, *Error)
	errs    []*Error
	lines   map[string]int    // of every key, by path
	origins map[string]string // of every single value, by path
	opaque  []string          // paths of values in place of mappings
	written written
}

// A field reads the value of one key. It is called with nil for a key that is
// absent, which keeps the default.
type field func(n *node, at keyPath)

// group reads a mapping whose keys are known.
func (r *reader) group(fields map[string]field) field {
	known := slices.Sorted(maps.Keys(fields))
	return func(n *node, at keyPath) {
		present := map[string]*node{}
		for _, e := range r.entries(n, at) {
			if fields[e.key] == nil {
				hint := suggest.Hint(e.key, known, "keys")
				if len(known) == 0 { // of messages
					hint = "a message has no keys; where it goes stands under routing"
				}
				r.fail(e.line, at, "unknown key "+quote(e.key), hint)
				continue
			}
			present[e.key] = e.value
		}
		for _, key := range known {
			fields[key](present[key], at.child(key))
		}
	}
}

// each reads a mapping whose keys are names chosen by the user.
func (r *reader) each(read func(name string, n *node, at keyPath)) field {
	return func(n *node, at keyPath) {
		for _, e := range r.entries(n, at) {
			read(e.key, e.value, at.child(e.key))
		}
	}
}

// named reads a mapping from names chosen by the user to values of one kind.
func named[T any](r *reader, to *map[string]T, read func(*T, *reader) field) field {
	return r.each(func(name string, n *node, at keyPath) {
		var value T
		read(&value, r)(n, at)
		if *to == nil {
			*to = map[string]T{}
		}
		(*to)[name] = value
	})
}

// entries returns the entries of a mapping without the second and later ones
// of one key. A key with nothing after it is an empty mapping.
func (r *reader) entries(n *node, at keyPath) []entry {
	if n == nil || n.kind == null {
		return nil
	}
	if n.kind != mapping {
		hint := "write key: value pairs"
		if len(at) == 2 && at[0] == "transports" && n.kind == scalar { // the habit of Symfony
			hint = "write " + safe(at[1]) + ": { dsn: ... }"
		}
		r.fail(n.line, at, fmt.Sprintf("%s where a mapping belongs", n.kind), hint)
		r.opaque = append(r.opaque, at.String()+".")
		return nil
	}
	var kept []entry
	first := map[string]int{}
	for _, e := range n.entries {
		if line, ok := first[e.key]; ok {
			r.fail(e.line, at.child(e.key), "duplicate key", fmt.Sprintf("it is also on line %d", line))
			continue
		}
		first[e.key] = e.line
		r.lines[at.child(e.key).String()] = e.line
		kept = append(kept, e)
	}
	return kept
}

// scalar returns the expanded value of n, a hint that names the origins of expanded
// parts, and false if there is no value.
func (r *reader) scalar(n *node, at keyPath) (expanded, from string, ok bool) {
	switch {
	case n == nil:
		r.origins[at.String()] = byDefault
		return "", "", false
	case n.kind == null:
		r.fail(n.line, at, "no value", "give it one, or remove the key if it has a default")
		return "", "", false
	case n.kind != scalar:
		r.fail(n.line, at, fmt.Sprintf("%s where a single value belongs", n.kind), "")
		return "", "", false
	}
	expanded, origins, err := r.expand(n.text)
	if err != nil {
		r.fail(n.line, at, err.Problem, err.Hint).cause = err.cause
		return "", "", false
	}
	elsewhere := strings.Join(origins, ", ")
	r.origins[at.String()] = cmp.Or(join(", ", r.place(n.line), elsewhere), byDefault)
	if elsewhere != "" {
		from = "from " + elsewhere
		r.written[valueAt{at.String(), expanded}] = n.text
	}
	return expanded, from, true
}

// byDefault is the origin of a default value.
const byDefault = "default"

func (r *reader) place(line int) string {
	if line == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d", r.file, line)
}

// leaf reads a single value. If parse refuses it, the error shows the value before
// expansion: the expanded one may be a secret.
func leaf[T any](r *reader, to *T, accepts string, parse func(string) (T, bool)) field {
	return func(n *node, at keyPath) {
		s, from, ok := r.scalar(n, at)
		if !ok {
			return
		}
		v, ok := parse(s)
		if !ok {
			r.fail(n.line, at, fmt.Sprintf("%s is not %s", quote(n.text), accepts), from).Value = safe(n.text)
			return
		}
		*to = v
	}
}

func (r *reader) dsn(to *DSN) field {
	return func(n *node, at keyPath) {
		s, from, ok := r.scalar(n, at)
		if !ok {
			return
		}
		d, err := ParseDSN(s)
		for _, e := range unwrapAll(err) {
			what, value := e.Problem, e.Value
			if from != "" {
				what, value = onlyWritten(what, n.text, s), safe(n.text)
			}
			r.fail(n.line, at, what, join("; ", e.Hint, from)).Value = value
		}
		*to = d
	}
}

// list reads one value or a list of values.
func (r *reader) list(to *[]string) field {
	return func(n *node, at keyPath) {
		items := []*node{n}
		if n != nil && n.kind == sequence {
			items = n.items
		}
		for _, item := range items {
			if s, _, ok := r.scalar(item, at); ok {
				*to = append(*to, s)
			}
		}
	}
}

func (r *reader) text(to *string) field {
	return leaf(r, to, "a text that is not empty", func(s string) (string, bool) { return s, s != "" })
}

func (r *reader) duration(to *time.Duration) field {
	return leaf(r, to, "a duration (such as 15s, 1h30m or 30d)", func(s string) (time.Duration, bool) {
		d, err := ParseDuration(s)
		return d, err == nil
	})
}

func (r *reader) size(to *uint64) field {
	return leaf(r, to, "a size (such as 256MiB or 1GiB)", func(s string) (uint64, bool) {
		n, err := ParseSize(s)
		return n, err == nil
	})
}

func (r *reader) bool(to *bool) field {
	return leaf(r, to, "true or false", func(s string) (bool, bool) { return s == "true", s == "true" || s == "false" })
}

// not reads true or false, and keeps the opposite.
func (r *reader) not(to *bool) field {
	return leaf(r, to, "true or false", func(s string) (bool, bool) { return s == "false", s == "true" || s == "false" })
}

func (r *reader) int(to *int) field {
	return leaf(r, to, "a whole number", func(s string) (int, bool) {
		i, err := strconv.Atoi(s)
		return i, err == nil
	})
}

func (r *reader) float(to *float64) field {
	return leaf(r, to, "a number", func(s string) (float64, bool) {
		f, err := strconv.ParseFloat(s, 64)
		return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
	})
}

// oneOf reads one of a few words.
func oneOf[T ~string](r *reader, to *T, words ...T) field {
	accepts := make([]string, len(words))
	for i, w := range words {
		accepts[i] = string(w)
	}
	return leaf(r, to, "one of "+strings.Join(accepts, ", "), func(s string) (T, bool) {
		return T(s), slices.Contains(words, T(s))
	})
}

func (r *reader) fail(line int, at keyPath, what, hint string) *Error {
	e := &Error{Line: line, Path: at.String(), Problem: what, Hint: hint}
	if line > 0 {
		e.File = r.file
	}
	r.errs = append(r.errs, e)
	return e
}

// join joins the parts that are not empty.
func join(separator string, parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.Join(parts, separator)
}
