package suggest

import (
	"strconv"
	"strings"
	"testing"
)

func TestHintNamesTheNearestOrAll(t *testing.T) {
	known := []string{"order.placed", "order.shipped", "mail", "to"}
	for word, want := range map[string]string{
		"order.place": "order.placed", "order.placedd": "order.placed", "ordershiped": "order.shipped", "mial": "mail", "t": "to",
		"zzz": "", "": "", "x": "", strings.Repeat("order.placed", 20): "",
	} {
		if want == "" {
			want = "names: order.placed, order.shipped, mail, to"
		} else {
			want = "did you mean " + strconv.Quote(want) + "?"
		}
		if got := Hint(word, known, "names"); got != want {
			t.Errorf("Hint(%q) = %s, want %s", word, got, want)
		}
	}
	if got := Hint("x", nil, "transports"); got != "there are no transports" {
		t.Errorf("got %q", got)
	}
}
