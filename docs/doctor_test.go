package docs_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/admin"
)

// The table of doctor's findings has each code, with its severity, and no other.
func TestOperationsNameEveryFinding(t *testing.T) {
	text, err := os.ReadFile("operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Is anything wrong?")
	section, _, _ = strings.Cut(section, "\n## ")
	for code, severity := range admin.Severities() {
		if row := fmt.Sprintf("\n| `%s` | %s | ", code, severity); strings.Count(section, row) != 1 {
			t.Errorf("operations.md has no row %q", row)
		}
	}
	if got, want := strings.Count(section, "\n| `"), len(admin.Severities()); got != want {
		t.Errorf("%d rows, want %d", got, want)
	}
}
