package waybill

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// A Codec turns message bodies into bytes and back. Its methods may be called
// concurrently.
type Codec interface {
	// ContentType returns the media type of encoded bodies.
	ContentType() string
	// Encode returns msg, a struct, as bytes.
	Encode(msg any) ([]byte, error)
	// Decode reads body into the struct that into points to.
	Decode(body []byte, into any) error
}

// JSON is the default codec: encoding/json. HTML characters are not escaped.
type JSON struct{}

const jsonType = "application/json"

// ContentType returns application/json.
func (JSON) ContentType() string { return jsonType }

// Encode returns msg as one line of JSON.
func (JSON) Encode(msg any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(msg); err != nil {
		return nil, err
	}
	body := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	if string(body) == "{}" && hidesFields(reflect.TypeOf(msg)) {
		return nil, errors.New("its fields are not exported, and would be left out: begin their names with capital letters")
	}
	return body, nil
}

// hidesFields reports whether typ has fields of which encoding/json sees none.
func hidesFields(typ reflect.Type) bool {
	if typ.Kind() != reflect.Struct || typ.NumField() == 0 || typ.Implements(reflect.TypeFor[json.Marshaler]()) {
		return false
	}
	for i := range typ.NumField() {
		if f := typ.Field(i); f.IsExported() || f.Anonymous || f.Name == "_" {
			return false
		}
	}
	return true
}

// Decode reads one JSON value. Unknown fields are allowed: a newer producer may
// add some. It refuses null, of which encoding/json makes an empty message, unless into
// is a json.Unmarshaler.
func (JSON) Decode(body []byte, into any) error {
	if _, decodes := into.(json.Unmarshaler); !decodes && string(bytes.TrimSpace(body)) == "null" {
		return errors.New("it is null, and the message would be empty: want an object")
	}
	return json.Unmarshal(body, into)
}

// checkJSON refuses a body that is not one JSON value or nests deeper than max.
func checkJSON(body []byte, max int) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return errors.New("it is empty, want one JSON value")
	}
	if depth := jsonDepth(body); depth > max {
		return &LimitError{"JSON depth", depth, max, "Depth"}
	}
	if json.Valid(body) {
		return nil
	}
	var any json.RawMessage
	err := json.Unmarshal(body, &any)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("it is not JSON: %w at byte %d", err, syntax.Offset)
	}
	return fmt.Errorf("it is not JSON: %w", err)
}

// jsonDepth returns the deepest nesting of objects and arrays in body, valid or
// not, without recursion.
func jsonDepth(body []byte) int {
	depth, deepest, inString := 0, 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}
