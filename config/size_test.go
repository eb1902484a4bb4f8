package config

import (
	"testing"

	"pgregory.net/rapid"
)

func TestSizesAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(0, 1<<62).Draw(t, "bytes") >> rapid.IntRange(0, 62).Draw(t, "shift")
		if got, err := ParseSize(FormatSize(n)); got != n || err != nil {
			t.Fatalf("%d: %s is read as %d, %v", n, FormatSize(n), got, err)
		}
	})
	for text, want := range map[string]uint64{"256MiB": 256 << 20, "1GiB": 1 << 30, "7B": 7, "8388607TiB": 8388607 << 40} {
		if got, err := ParseSize(text); got != want || err != nil {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	for _, wrong := range []string{"", "256", "MiB", "1MB", "-1MiB", "1.5GiB", "8388608TiB", "1MiBMiB", "1 MiB"} {
		if got, err := ParseSize(wrong); err == nil {
			t.Errorf("%q is read as %d", wrong, got)
		}
	}
}
