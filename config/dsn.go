package config

import (
	"regexp"
	"strings"

	"github.com/waybill-go/waybill/internal/suggest"
)

// A DSN names a database, a broker or a queue, and how to use it. ParseDSN
// makes one; the zero value names nothing. It is a value: copies are
// independent, and it may be read concurrently.
//
// A DSN prints itself without its password, by every printer.
type DSN struct {
	// Scheme is the canonical name: postgres for postgresql, mysql for
	// mariadb, and never with the prefix "ordered-".
	Scheme string
	// User is decoded. A password is had from RevealPassword only.
	User string
	// Host is host or host:port, for nats and kafka several of them separated
	// by commas; for queue and memory the NAME. The port is as it was
	// written: none means the default of the protocol.
	Host string
	// Path is the file of sqlite. For a server it is decoded, without the
	// slash that follows the host: the database, virtual host, topic or
	// database number. Empty means that none was given.
	Path string

	// A pointer, so that no reflecting printer shows it: fmt does not call the
	// methods of a DSN in an unexported field, and prints such a pointer as a
	// number.
	password *string
	options  map[string]any // by name; never changed once the DSN is made
}

// ParseDSN parses a connection string. The grammar and the options of each
// scheme are in docs/config.md. An error is an *Error, or several joined, and
// never holds text that may be part of a password, however malformed s is.
func ParseDSN(s string) (DSN, error) {
	d, err := parseDSN(s)
	if err != nil {
		return DSN{}, err
	}
	return d, nil
}

var schemeForm = regexp.MustCompile(`^[a-z][a-z0-9+.-]{0,31}$`)

func parseDSN(s string) (DSN, error) {
	word, rest, ok := strings.Cut(s, "://")
	if !ok || !schemeForm.MatchString(word) {
		return DSN{}, problem("not a DSN: it does not begin with a scheme", "such as postgres://app@localhost/shop, mysql://app@localhost/shop, sqlite://./waybill.db or queue://orders")
	}
	plain, inOrder := strings.CutPrefix(word, "ordered-")
	canonical, spec, ok := lookupScheme(plain)
	if !ok {
		if plain == "doctrine" {
			return DSN{}, problem("unknown scheme "+quote(word), "for Symfony's table write symfony+mysql://user:password@host/database or symfony+postgres://...; for a queue of waybill's own queue://NAME")
		}
		return DSN{}, problem("unknown scheme "+quote(word), suggest.Hint(plain, schemeNames(), "schemes"))
	}
	if err := checkText(rest); err != nil {
		return DSN{}, err
	}
	address, query, hasQuery := strings.Cut(rest, "?")
	d := DSN{Scheme: canonical}
	if err := d.parseAddress(address, spec); err != nil {
		return DSN{}, err
	}
	switch {
	case inOrder && hasQuery:
		query = "ordered=true&" + query
	case inOrder:
		query = "ordered=true"
	case !hasQuery:
		return d, nil
	}
	options, err := parseOptions(query, spec.options, canonical)
	d.options = options
	return d, err
}

// MustParseDSN is ParseDSN for DSNs in source code. It panics on an error.
func MustParseDSN(s string) DSN {
	d, err := ParseDSN(s)
	if err != nil {
		panic(err)
	}
	return d
}

// Equal reports whether d and o are the same, passwords included.
func (d DSN) Equal(o DSN) bool {
	return d.Reveal() == o.Reveal() && (d.password == nil) == (o.password == nil)
}

// IsZero reports whether d names nothing.
func (d DSN) IsZero() bool { return d.Scheme == "" }

func problem(what, hint string) *Error {
	return &Error{Path: "dsn", Problem: what, Hint: hint}
}
