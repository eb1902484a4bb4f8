//go:build !chaos

package mutant_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/waybill-go/waybill/internal/test/mutant"
)

func TestNothingIsPlantedWithoutTheTag(t *testing.T) {
	if os.Getenv("WAYBILL_MUTANT") == "" {
		// The environment is to be there from the start of the process.
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "WAYBILL_MUTANT="+mutant.DeleteBeforeConfirm)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("with WAYBILL_MUTANT set: %v\n%s", err, out)
		}
	}
	for _, name := range []string{mutant.DeleteBeforeConfirm, mutant.InboxOutsideTransaction} {
		if mutant.Active(name) {
			t.Errorf("Active(%q) = true, want false", name)
		}
	}
}
