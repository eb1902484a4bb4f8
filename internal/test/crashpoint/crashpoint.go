// Package crashpoint kills a process at a named point of its work, so that a test can check
// the state that must survive it.
package crashpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/waybill-go/waybill/internal/crash"
)

// Variable is the environment's.
const Variable = "WAYBILL_CRASH_AT"

// Points are all points. The part before the first dash is the role.
var Points = []string{
	crash.DispatchBeforeCommit, crash.DispatchAfterCommit,
	crash.RelayAfterClaim, crash.RelayInPublish, crash.RelayAfterPublish, crash.RelayAfterSettle,
	crash.WorkerBeforeCommit, crash.WorkerBeforeAck,
	crash.WorkerBeforeStore, crash.WorkerAfterStore, crash.WorkerBeforeMove, crash.WorkerAfterMove,
	crash.WorkerBeforeRetryAck, crash.WorkerAfterRetryAck,
}

// Arm obeys WAYBILL_CRASH_AT=POINT,N: the process dies by SIGKILL when it comes to the point
// for the N-th time. It panics on anything else, because a typo would be a crash that never
// comes.
func Arm() {
	text := os.Getenv(Variable)
	if text == "" {
		return
	}
	chosen, count, _ := strings.Cut(text, ",")
	last, err := strconv.ParseInt(count, 10, 64)
	if err != nil || last < 1 || !slices.Contains(Points, chosen) {
		panic(fmt.Sprintf("crashpoint: %s=%q: want POINT,N with one of %s", Variable, text, strings.Join(Points, ", ")))
	}
	var times atomic.Int64
	crash.Hook = func(point string) {
		if point != chosen || times.Add(1) != last {
			return
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until it strikes
	}
}
