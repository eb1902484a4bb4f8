package waycli

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode"
)

// A stranger's bytes reach the log as a message's name, key or in an error. Colours
// are the log's own.
func TestLogLeavesNothingForATerminalToObey(t *testing.T) {
	const evil = "x\x1b]0;PWNED\x07\x1b[2J\u009b1;1H"
	for _, color := range []bool{true, false} {
		var b bytes.Buffer
		log, err := newLog(newScreen(&b), "debug", "text", color)
		if err != nil {
			t.Fatal(err)
		}
		log.Warn("failed "+evil, slog.String("message", evil), slog.Any("err", fmt.Errorf("no: %w", errors.New(evil))), slog.Group("of", slog.Any("v", []string{evil})), slog.Int("n", 7))
		out := b.String()
		for _, own := range []string{"\x1b[2m", "\x1b[22m", "\x1b[0m", "\x1b[93m", "\x1b[92m"} {
			out = strings.ReplaceAll(out, own, "")
		}
		if strings.ContainsFunc(strings.TrimSuffix(out, "\n"), unicode.IsControl) {
			t.Errorf("with colour %t: %q", color, out)
		}
		for _, want := range []string{"WRN", "PWNED", "␛[2J", "n=7"} {
			if !strings.Contains(out, want) {
				t.Errorf("with colour %t: %q lacks %q", color, out, want)
			}
		}
	}
}

func TestPrintedErrorLeavesNothingForATerminalToObey(t *testing.T) {
	var b bytes.Buffer
	PrintError(&b, "shop", &Error{0, errors.New("größe \x1b[2J\xff \"k\\\""), "try \x07"}, false)
	if got, want := b.String(), "shop: größe \\x1b[2J\\xff \"k\\\"\nhint: try \\a\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}
