package dashboard

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestRoutesAreDescribedAndChangesAreNoneOfViewers(t *testing.T) {
	text, err := static.ReadFile("static/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var described struct {
		Paths map[string]map[string]struct {
			Role string `json:"x-role"`
		}
	}
	if err := json.Unmarshal(text, &described); err != nil {
		t.Fatal(err)
	}
	d := &Dashboard{}
	n := 0
	for _, r := range append(d.table(), d.apiRoutes()...) {
		method, path, _ := strings.Cut(r.pattern, " ")
		if method != "GET" && (method != "POST" || r.role < Operator) {
			t.Errorf("%s is for a %s", r.pattern, r.role)
		}
		if !strings.HasPrefix(path, apiPath) {
			continue
		}
		n++
		if got, ok := described.Paths[path][strings.ToLower(method)]; !ok || got.Role != r.role.String() {
			t.Errorf("openapi.json has %+v for %s, a route of a %s", got, r.pattern, r.role)
		}
	}
	for _, methods := range described.Paths {
		n -= len(methods)
	}
	if n != 0 {
		t.Errorf("openapi.json has %d routes too many", -n)
	}
}
