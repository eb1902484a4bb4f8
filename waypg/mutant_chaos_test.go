//go:build chaos

package waypg_test

import (
	"os"
	osexec "os/exec"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/mutant"
)

// The case of the late commit proves something: it catches the relay that reads
// unserialized rows from behind a mark.
func TestUnserializedLateCommitCatchesItsMutant(t *testing.T) {
	cmd := osexec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOutbox$/^direct$/^UnserializedLateCommitIsNotPassedOver$")
	cmd.Env = append(os.Environ(), "WAYBILL_MUTANT="+mutant.UnserializedMark)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a relay takes") {
		t.Errorf("error %v with output\n%s\nwant the case to fail", err, out)
	}
}
