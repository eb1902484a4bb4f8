package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/suggest"
)

// A kind is the type of an option's value: time.Duration, int, bool, string
// (enum and text), []string (list) or DSN.
type kind string

const (
	durationKind kind = "duration"
	intKind      kind = "int"
	boolKind     kind = "bool"
	enumKind     kind = "enum"
	textKind     kind = "string"
	listKind     kind = "list"
	dsnKind      kind = "dsn"
)

// An option is one name that a scheme knows.
type option struct {
	name     string
	kind     kind
	words    []string       // bool, enum: the values; dsn: the schemes
	low, top int            // int, and seconds of a duration (top 0: any)
	match    *regexp.Regexp // text (nil: anything), and each item of a list
	accepts  string         // description of valid values, for errors
}

func duration(name string) option {
	return option{name: name, kind: durationKind, accepts: "a duration above zero, such as 15s, 1h30m or 30d"}
}

// seconds is a duration without fractions of a second.
func seconds(name string, low, top int) option {
	accepts := fmt.Sprintf("whole seconds, from %s to %s", FormatDuration(time.Duration(low)*time.Second), FormatDuration(time.Duration(top)*time.Second))
	return option{name: name, kind: durationKind, low: low, top: top, accepts: accepts}
}

func whole(name string, low, top int) option {
	return option{name: name, kind: intKind, low: low, top: top, accepts: fmt.Sprintf("a whole number from %d to %d", low, top)}
}

func boolean(name string) option {
	return option{name: name, kind: boolKind, words: []string{"true", "false"}, accepts: "true or false"}
}

func enum(name string, words ...string) option {
	return option{name: name, kind: enumKind, words: words, accepts: strings.Join(words, ", ")}
}

func text(name string) option {
	return option{name: name, kind: textKind, accepts: "a text that is not empty"}
}

func pattern(name string, match *regexp.Regexp, accepts string) option {
	return option{name: name, kind: textKind, match: match, accepts: accepts}
}

func list(name string, match *regexp.Regexp, accepts string) option {
	return option{name: name, kind: listKind, match: match, accepts: accepts}
}

func nested(name string, schemes ...string) option {
	return option{name: name, kind: dsnKind, words: schemes, accepts: "a percent-encoded DSN: " + strings.Join(schemes, ", ")}
}

// parseOptions reads name=value&name=value. Every error is reported.
func parseOptions(query string, known []option, of string) (map[string]any, error) {
	values := map[string]any{}
	var errs []error
	for pair := range strings.SplitSeq(query, "&") {
		word, raw, hasValue := strings.Cut(pair, "=")
		i := slices.IndexFunc(known, func(o option) bool { return o.name == word })
		_, twice := values[word]
		switch {
		case pair == "":
			errs = append(errs, problem("an empty option", "there is a stray & or ?"))
		case i < 0 && !hasValue:
			// Not named: it may be the tail of a password with a bare ? in it.
			errs = append(errs, problem("an option without a value", "write name=value, and ? in a password as %3F"))
		case i < 0 && schemes[of].lacks[word] != "":
			errs = append(errs, problem(fmt.Sprintf("there is no option %q for %s", word, of), schemes[of].lacks[word]))
		case i < 0:
			errs = append(errs, problem("unknown option "+quote(word), suggest.Hint(word, optionNames(known), "options of "+of)))
		case twice:
			errs = append(errs, problem("option "+quote(word)+" is given twice", "several values of a list are separated by commas"))
		default:
			v, err := known[i].parse(raw)
			if err != nil {
				errs = append(errs, err)
			}
			values[word] = v
		}
	}
	return values, errors.Join(errs...)
}

func optionNames(options []option) []string {
	names := make([]string, len(options))
	for i, o := range options {
		names[i] = o.name
	}
	return names
}

// parse decodes and checks the value of o.
func (o option) parse(raw string) (any, error) {
	if o.kind == listKind {
		return o.parseList(raw) // before decoding: an encoded comma is part of an item
	}
	word, ok := decode(raw)
	if !ok {
		return nil, o.refuse(mask) // still encoded, a credential in it would not be seen
	}
	if word == "" {
		return nil, o.refuse(word)
	}
	switch o.kind {
	case durationKind:
		if d, err := ParseDuration(word); err == nil && d > 0 && o.inSeconds(d) {
			return d, nil
		}
	case intKind:
		if n, err := strconv.Atoi(word); err == nil && n >= o.low && n <= o.top {
			return n, nil
		}
	case boolKind:
		if slices.Contains(o.words, word) {
			return word == "true", nil
		}
	case enumKind:
		if slices.Contains(o.words, word) {
			return word, nil
		}
	case textKind:
		if o.match == nil || o.match.MatchString(word) {
			return word, nil
		}
	case dsnKind:
		return o.parseDSN(word)
	}
	return nil, o.refuse(word)
}

// inSeconds reports whether d fits, where o counts in seconds.
func (o option) inSeconds(d time.Duration) bool {
	low, top := time.Duration(o.low)*time.Second, time.Duration(o.top)*time.Second
	return top == 0 || d >= low && d <= top && d%time.Second == 0
}

func (o option) parseList(raw string) (any, error) {
	items := strings.Split(raw, ",")
	for i, item := range items {
		word, ok := decode(item)
		if !ok {
			return nil, o.refuse(mask)
		}
		if !o.match.MatchString(word) {
			return nil, o.refuse(word)
		}
		items[i] = word
	}
	return items, nil
}

func (o option) parseDSN(word string) (any, error) {
	d, err := ParseDSN(word)
	if err == nil && slices.Contains(o.words, d.Scheme) {
		return d, nil
	}
	if err == nil {
		return nil, problem(fmt.Sprintf("option %q: scheme %q does not fit", o.name, d.Scheme), "it takes "+o.accepts)
	}
	errs := make([]error, 0, 1)
	for _, e := range unwrapAll(err) {
		errs = append(errs, problem(fmt.Sprintf("option %q: %s", o.name, e.Problem), e.Hint))
	}
	return nil, errors.Join(errs...)
}

func (o option) refuse(value string) error {
	e := problem(fmt.Sprintf("option %q: wrong value %s", o.name, quote(value)), "it takes "+o.accepts)
	e.Value = safe(value)
	return e
}

// encode is the inverse of parse.
func encode(value any, reveal bool) string {
	const keep = "/:*"
	switch v := value.(type) {
	case time.Duration:
		return FormatDuration(v)
	case int:
		return strconv.Itoa(v)
	case bool:
		return strconv.FormatBool(v)
	case []string:
		items := make([]string, len(v))
		for i, item := range v {
			items[i] = escape(item, keep)
		}
		return strings.Join(items, ",")
	case DSN:
		return escape(v.format(reveal), "")
	case string:
		return escape(v, keep)
	}
	panic(fmt.Sprintf("config: option value of type %T", value))
}
