// Package headers turns a record's headers into the JSON object that is kept in
// a table, and back.
package headers

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/waybill-go/waybill"
)

// contentType is the key under which a content type other than JSON is stored
// among the headers.
const contentType = "content-type"

// Encode returns the object that holds rec's headers and content type.
func Encode(rec *waybill.Record) (string, error) {
	plain := rec.ContentType == "" || rec.ContentType == "application/json"
	if len(rec.Headers) == 0 && plain {
		return "{}", nil
	}
	all := rec.Headers
	if !plain {
		all = make(map[string]string, len(rec.Headers)+1)
		maps.Copy(all, rec.Headers)
		all[contentType] = rec.ContentType
	}
	text, err := json.Marshal(all)
	return string(text), err
}

// Decode sets rec's headers and content type from what Encode returned. An
// error means that another program has written something else; its ID says which.
func Decode(rec *waybill.Record, text string) error {
	rec.ContentType = "application/json"
	if text == "{}" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &rec.Headers); err != nil {
		return fmt.Errorf("headers of message %s: %w", rec.ID, err)
	}
	if other, ok := rec.Headers[contentType]; ok {
		rec.ContentType = other
		delete(rec.Headers, contentType)
	}
	return nil
}
