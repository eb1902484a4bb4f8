package waysqlite_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// A long error is kept up to the last character that fits, and marked as cut only if it is.
func TestLongErrorsAreCutBetweenCharacters(t *testing.T) {
	whole := strings.Repeat("ä", 1000)
	for text, want := range map[string]string{whole: whole, "x" + whole: "x" + strings.Repeat("ä", 999) + "...", "a\x00\xff": "a\uFFFD\uFFFD"} {
		db := open(t, waysqlite.Config{})
		put(t, newOutbox(t, db, outbox.Config{}), order{"k", 0})
		c := claim(t, db, outbox.Keyed)
		settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errors.New(text), Policy: outbox.Block})
		if got := blocked(t, db).LastError; got != want {
			t.Errorf("last error %q, want %q", got, want)
		}
	}
}
