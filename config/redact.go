package config

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// String is d in its canonical form with *** for the password: options sorted
// by name, everything percent-encoded that has to be. ParseDSN accepts it.
func (d DSN) String() string { return d.format(false) }

// Reveal is String with the passwords, for opening the connection. Never log it.
func (d DSN) Reveal() string { return d.format(true) }

// RevealPassword is the decoded password, empty if there is none. Never log
// it.
func (d DSN) RevealPassword() string {
	if d.password == nil {
		return ""
	}
	return *d.password
}

// HasPassword reports whether d was parsed with a password, even an empty one.
func (d DSN) HasPassword() bool { return d.password != nil }

// Redacted returns a copy of d without its passwords: each is ***.
func (d DSN) Redacted() DSN {
	if d.password != nil {
		hidden := mask
		d.password = &hidden
	}
	d.options = maps.Clone(d.options)
	for k, v := range d.options {
		if nested, ok := v.(DSN); ok {
			d.options[k] = nested.Redacted()
		}
	}
	return d
}

// GoString is String in quotes.
func (d DSN) GoString() string { return fmt.Sprintf("config.DSN(%q)", d.String()) }

// Format prints String for every verb.
func (d DSN) Format(f fmt.State, verb rune) {
	if verb == 'v' && f.Flag('#') {
		fmt.Fprint(f, d.GoString())
		return
	}
	fmt.Fprintf(f, fmt.FormatString(f, verb), d.String())
}

// LogValue logs String.
func (d DSN) LogValue() slog.Value { return slog.StringValue(d.String()) }

// MarshalText writes String.
func (d DSN) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// MarshalJSON writes String.
func (d DSN) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

func (d DSN) format(reveal bool) string {
	if d.IsZero() {
		return ""
	}
	spec := schemes[d.Scheme]
	var b strings.Builder
	b.WriteString(d.Scheme + "://")
	if d.User != "" || d.password != nil {
		b.WriteString(escape(d.User, ""))
		if d.password != nil {
			secret := mask
			if reveal {
				secret = escape(*d.password, "")
			}
			b.WriteString(":" + secret)
		}
		b.WriteString("@")
	}
	b.WriteString(d.Host)
	switch {
	case spec.shape == fileShape:
		b.WriteString(escape(d.Path, "/"))
	case d.Path != "":
		b.WriteString("/" + escape(d.Path, ""))
	}
	separator := "?"
	for _, k := range slices.Sorted(maps.Keys(d.options)) {
		b.WriteString(separator + k + "=" + encode(d.options[k], reveal))
		separator = "&"
	}
	return b.String()
}
