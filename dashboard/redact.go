package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Redaction are rules for the contents of messages, which hold for everyone.
type Redaction struct {
	// Headers are names of headers, in any case, whose values are not shown.
	Headers []string
	// Paths are the fields of JSON bodies whose values are not shown, such as "card.number"
	// or "items.*.token": the names of fields from the top, * for any field or element. A
	// body that is no JSON is then not shown at all.
	Paths []string
}

// redacted stands in place of a value.
const redacted = "***"

func (r Redaction) check() error {
	for _, path := range r.Paths {
		if path == "" || slices.Contains(strings.Split(path, "."), "") {
			return fmt.Errorf("redaction path %q: want names of fields with dots between them, such as card.number", path)
		}
	}
	if slices.Contains(r.Headers, "") {
		return errors.New("redaction of a header without a name")
	}
	return nil
}

// header returns the value of a header as it is shown.
func (r Redaction) header(name, value string) string {
	if slices.ContainsFunc(r.Headers, func(h string) bool { return strings.EqualFold(h, name) }) {
		return redacted
	}
	return value
}

// body returns a body as it is shown, and whether that is the body itself.
func (r Redaction) body(body []byte) (shown []byte, whole bool) {
	if len(r.Paths) == 0 {
		return body, true
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, false
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, false
	}
	found := false
	for _, path := range r.Paths {
		v = hide(v, strings.Split(path, "."), &found)
	}
	if !found {
		return body, true
	}
	shown, err := json.Marshal(v)
	if err != nil {
		return nil, false
	}
	return shown, false
}

// hide replaces the values at path, below v.
func hide(v any, path []string, found *bool) any {
	if len(path) == 0 {
		*found = true
		return redacted
	}
	switch v := v.(type) {
	case map[string]any:
		for name, below := range v {
			if path[0] == "*" || strings.EqualFold(path[0], name) {
				v[name] = hide(below, path[1:], found)
			}
		}
	case []any:
		for i, below := range v {
			if path[0] == "*" {
				v[i] = hide(below, path[1:], found)
			}
		}
	}
	return v
}
