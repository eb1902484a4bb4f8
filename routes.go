package waybill

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Routes maps patterns of message names to transports. A pattern is an exact
// name, a prefix followed by ".*" (order.* matches order.placed and
// order.line.added), or "*". The exact name wins, then the longest prefix.
type Routes map[string][]string

// For returns the transports of name, or nil when nothing matches.
func (r Routes) For(name string) []string {
	if to, ok := r[name]; ok {
		return to
	}
	for prefix := name; ; {
		dot := strings.LastIndexByte(prefix, '.')
		if dot < 0 {
			return r["*"]
		}
		prefix = prefix[:dot]
		if to, ok := r[prefix+".*"]; ok {
			return to
		}
	}
}

// Validate returns an error for a malformed pattern, one without transports, or one that
// names a transport twice, which would get each message twice.
func (r Routes) Validate() error {
	for _, pattern := range slices.Sorted(maps.Keys(r)) {
		if pattern != "*" {
			if err := checkName(strings.TrimSuffix(pattern, ".*")); err != nil {
				return fmt.Errorf("waybill: route %q: a pattern is a name, a prefix with '.*', or '*'", pattern)
			}
		}
		if len(r[pattern]) == 0 || slices.Contains(r[pattern], "") {
			return fmt.Errorf("waybill: route %q names no transport", pattern)
		}
		if twice := repeated(r[pattern]); twice != "" {
			return fmt.Errorf("waybill: route %q names transport %s twice", pattern, twice)
		}
	}
	return nil
}

// Validate returns an error if a transport is named twice, which would get the message twice.
func (t TransportNames) Validate() error {
	if twice := repeated(t); twice != "" {
		return &InvalidError{"stamp TransportNames", strings.Join(t, ", "), "it names transport " + twice + " twice"}
	}
	return nil
}

// repeated returns the first name that is there before, or none.
func repeated(names []string) string {
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return name
		}
	}
	return ""
}
