package suggest

import (
	"strings"
	"testing"
)

func TestWordIsOnlyWhatCouldBeMeant(t *testing.T) {
	known := []string{"exchange", "type", "queue", "to"}
	for word, want := range map[string]string{
		"exhange": "exchange", "exchangee": "exchange", "queeu": "queue", "zzzzzzz": "", "": "", "x": "", "t": "to",
		strings.Repeat("exchange", 20): "",
	} {
		if got := Word(word, known); got != want {
			t.Errorf("Word(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestHintNamesTheNearestOrAll(t *testing.T) {
	known := []string{"order.placed", "order.shipped", "mail"}
	for word, want := range map[string]string{
		"order.place": `did you mean "order.placed"?`,
		"ordershiped": `did you mean "order.shipped"?`,
		"zzz":         "names: order.placed, order.shipped, mail",
	} {
		if got := Hint(word, known, "names"); got != want {
			t.Errorf("Hint(%q) = %s, want %s", word, got, want)
		}
	}
	if got := Hint("x", nil, "transports"); got != "there are no transports" {
		t.Errorf("got %q", got)
	}
}
