package config

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func staircase(levels int) string {
	var b strings.Builder
	for i := range levels {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestDeepDocumentIsRefusedBeforeItIsParsed(t *testing.T) {
	for name, content := range map[string]string{
		"lists": "a: " + strings.Repeat("[", 20_000), "mappings": strings.Repeat("{a: ", 20_000), "entries": strings.Repeat("- ", 20_000),
		"questions": strings.Repeat("? ", 20_000), "staircase": staircase(300), "tags": "a: " + strings.Repeat("!a ", 20_000), "anchors": "a: " + strings.Repeat("&a ", 20_000),
		"just too deep": "a: " + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), "blocks": staircase(maxDepth + 1),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse("waybill.yaml", []byte("# deep\n"+content), environment(nil))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.HasPrefix(err.Error(), "waybill.yaml:") || !strings.Contains(err.Error(), "more than 100 levels") {
			t.Errorf("%s: %.200v, want a refusal with the line", name, err)
		}
		if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 50 {
			t.Errorf("%s: %d MB were allocated", name, mb)
		}
	}
	for name, content := range map[string]string{
		"lists": "a: " + strings.Repeat("[", maxDepth-1) + strings.Repeat("]", maxDepth-1), "blocks": staircase(maxDepth),
		"side by side": "a: [" + strings.Repeat("[], {}, ", 500) + "]", "below each other": strings.Repeat("- [a]\n- b:\n    c: &x d\n", 500),
		"in quotes": "a: '" + strings.Repeat("[{- ", 500) + "'",
	} {
		if _, err := parseTree([]byte(content)); err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
	}
}

func TestLargeDocumentIsRefused(t *testing.T) {
	full := []byte(strings.Repeat("#", maxBytes-1) + "\n")
	if _, err := Parse("waybill.yaml", full, environment(nil)); err != nil {
		t.Errorf("1 MiB: %v", err)
	}
	path := filepath.Join(t.TempDir(), "waybill.yaml")
	if err := os.WriteFile(path, append(full, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, environment(nil)); err == nil || !strings.Contains(err.Error(), "waybill.yaml: it holds more than 1048576 bytes") {
		t.Errorf("1 MiB and a byte: %v, want a refusal", err)
	}
}
