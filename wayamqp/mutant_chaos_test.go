//go:build chaos

package wayamqp

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/mutant"
)

// The test of unroutable messages proves something: it catches the publisher
// that judges before it looks at the returns.
func TestUnroutableCatchesItsMutant(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestUnroutableIsNeverDelivered$")
	cmd.Env = append(os.Environ(), "WAYBILL_MUTANT="+mutant.ReturnsNotDrained)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "unroutable messages were judged delivered") {
		t.Errorf("error %v with output\n%s\nwant the test to fail", err, out)
	}
}
