//go:build !chaos

package crash_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/waybill-go/waybill/internal/crash"
)

func TestNothingCrashesWithoutTheTag(t *testing.T) {
	if os.Getenv("WAYBILL_CRASH_AT") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "WAYBILL_CRASH_AT="+crash.RelayAfterClaim+",1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("with WAYBILL_CRASH_AT set: %v\n%s", err, out)
		}
	}
	for _, point := range crash.Points {
		crash.At(point)
	}
}
