package waybill

import (
	"bytes"
	"encoding/json"
	"testing"
)

// depthByParsing computes the result of jsonDepth, the slow way.
func depthByParsing(body []byte) int {
	dec := json.NewDecoder(bytes.NewReader(body))
	depth, deepest := 0, 0
	for {
		token, err := dec.Token()
		if err != nil {
			return deepest
		}
		if delim, ok := token.(json.Delim); ok {
			if delim == '{' || delim == '[' {
				depth++
				deepest = max(deepest, depth)
			} else {
				depth--
			}
		}
	}
}

func FuzzJSONDepth(f *testing.F) {
	for _, s := range []string{`{}`, `[[["]"]]]`, `{"a":"\\\"[{"}`, `"\\"`, `[`, `]][[`, `"[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got := jsonDepth(body)
		if !json.Valid(body) {
			return // it need only come to an end
		}
		if want := depthByParsing(body); got != want {
			t.Errorf("jsonDepth(%q) = %d, want %d", body, got, want)
		}
	})
}
