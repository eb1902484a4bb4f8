//go:build chaos

package waymysql_test

import (
	"os"
	osexec "os/exec"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/mutant"
)

// The test of swallowed deadlocks proves something: it catches the unit of work
// that commits what is left of a transaction that is gone.
func TestSwallowedDeadlockCatchesItsMutant(t *testing.T) {
	cmd := osexec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSwallowedDeadlockHasOneEffect$")
	cmd.Env = append(os.Environ(), "WAYBILL_MUTANT="+mutant.NoSavepointGuard)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "acknowledged without a row in the inbox") {
		t.Errorf("error %v with output\n%s\nwant the test to fail", err, out)
	}
}

// The case of the late commit proves something: it catches the relay that reads
// unserialized rows from behind a mark.
func TestUnserializedLateCommitCatchesItsMutant(t *testing.T) {
	cmd := osexec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOutbox$/^UnserializedLateCommitIsNotPassedOver$")
	cmd.Env = append(os.Environ(), "WAYBILL_MUTANT="+mutant.UnserializedMark)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a relay takes") {
		t.Errorf("error %v with output\n%s\nwant the case to fail", err, out)
	}
}
