package waysqlite

import (
	"encoding/json"
	"fmt"

	"github.com/waybill-go/waybill"
)

// contentType is the key under which a content type other than JSON is stored
// among the headers.
const contentType = "content-type"

func encodeHeaders(rec *waybill.Record) (string, error) {
	plain := rec.ContentType == "" || rec.ContentType == "application/json"
	if len(rec.Headers) == 0 && plain {
		return "{}", nil
	}
	all := rec.Headers
	if !plain {
		all = make(map[string]string, len(rec.Headers)+1)
		for name, value := range rec.Headers {
			all[name] = value
		}
		all[contentType] = rec.ContentType
	}
	text, err := json.Marshal(all)
	return string(text), err
}

func decodeHeaders(rec *waybill.Record, text string) error {
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
