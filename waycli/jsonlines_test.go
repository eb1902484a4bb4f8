package waycli

import (
	"strings"
	"testing"
)

func TestLineThatOthersWouldReadOtherwiseIsRefused(t *testing.T) {
	for line, want := range map[string]string{
		`{"name":"a","key":"x","key":"y"}`:   `"key" is there twice`,
		`{"Name":"a"}`:                       "lower case",
		"{\"name\":\"a\",\"body\":\"\xe4\"}": "not UTF-8",
		`{"name":"a","key":"a\ud800b"}`:      "U+FFFD",
	} {
		if _, err := parseMessage([]byte(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	m, err := parseMessage([]byte(`{"name":"a","key":"größe","body":{"x":{"x":1}},"headers":{"h":"v"}}`))
	if err != nil || m.Key != "größe" {
		t.Errorf("%+v, %v", m, err)
	}
}
