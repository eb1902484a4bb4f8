package waybill_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
)

// The exact name wins, then the longest prefix, then "*".
func TestRoutePrecedence(t *testing.T) {
	words := rapid.StringMatching(`[ab](\.[ab]){0,3}`)
	rapid.Check(t, func(t *rapid.T) {
		routes := waybill.Routes{}
		for _, p := range rapid.SliceOf(rapid.OneOf(words, rapid.Map(words, func(s string) string { return s + ".*" }), rapid.Just("*"))).Draw(t, "patterns") {
			routes[p] = []string{p}
		}
		if err := routes.Validate(); err != nil {
			t.Fatal(err)
		}
		name := words.Draw(t, "name")
		var want []string
		for p := range routes { // every pattern that matches; the longest is the most exact
			prefix, isPrefix := strings.CutSuffix(p, ".*")
			if p == "*" || p == name || isPrefix && strings.HasPrefix(name, prefix+".") {
				if want == nil || p == name || want[0] != name && len(p) > len(want[0]) {
					want = []string{p}
				}
			}
		}
		if got := routes.For(name); !slices.Equal(got, want) {
			t.Fatalf("%s goes to %v, want %v; routes %v", name, got, want, routes)
		}
	})
}

func TestMalformedRoutesAreRefused(t *testing.T) {
	for _, r := range []waybill.Routes{
		{"": {"a"}}, {"a b": {"a"}}, {"*.placed": {"a"}}, {"order.*.x": {"a"}}, {".*": {"a"}}, {"**": {"a"}},
		{"order": nil}, {"order": {}}, {"order": {""}}, {"order": {"a", ""}}, {"order": {"a", "b", "a"}},
	} {
		if err := r.Validate(); err == nil {
			t.Errorf("Validate(%v) = nil, want an error", r)
		}
	}
	if diff := cmp.Diff([]string(nil), waybill.Routes(nil).For("a")); diff != "" {
		t.Errorf("no routes: %s", diff)
	}
}
