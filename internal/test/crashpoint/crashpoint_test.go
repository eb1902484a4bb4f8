package crashpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/waybill-go/waybill/internal/crash"
)

const stepsEnv = "WAYBILL_CRASH_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(stepsEnv) == "" {
		os.Exit(m.Run())
	}
	Arm()
	for range 3 {
		for _, point := range Points {
			crash.At(point)
			fmt.Println(point)
		}
	}
}

func run(at string) (out string, err error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), stepsEnv+"=1", Variable+"="+at)
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func TestProcessDiesAtItsPointAtTheGivenTime(t *testing.T) {
	for i, point := range Points {
		out, err := run(point + ",2")
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("%s: %v, want SIGKILL", point, err)
		}
		if got, want := strings.Count(out, "\n"), len(Points)+i; got != want {
			t.Errorf("%s: %d steps before it, want %d", point, got, want)
		}
	}
}

func TestPointThatIsNoneIsRefused(t *testing.T) {
	for _, at := range []string{"relay-after-clam,1", "relay-after-claim", "relay-after-claim,0", "relay-after-claim,x"} {
		if out, err := run(at); err == nil || !strings.Contains(out, "want POINT,N with one of dispatch-before-commit") {
			t.Errorf("%s: %v with %q, want a panic that lists the points", at, err, out)
		}
	}
	if out, err := run(""); err != nil || strings.Count(out, "\n") != 3*len(Points) {
		t.Errorf("without a point: %v\n%s", err, out)
	}
}
