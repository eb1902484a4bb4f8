package config

import (
	"strings"
	"testing"
)

func TestNearestSuggestsOnlyWhatCouldBeMeant(t *testing.T) {
	known := []string{"exchange", "type", "queue", "to"}
	for word, want := range map[string]string{
		"exhange": "exchange", "exchangee": "exchange", "queeu": "queue", "zzzzzzz": "", "": "", "x": "", "t": "to",
		strings.Repeat("exchange", 20): "",
	} {
		if got := nearest(word, known); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
