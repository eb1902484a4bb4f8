//go:build chaos

package crash

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Variable is the environment's.
const Variable = "WAYBILL_CRASH_AT"

var (
	chosen, last = mustChoose(os.Getenv(Variable))
	times        atomic.Int64
)

// At ends the process if it is to die here and now.
func At(point string) {
	if chosen == "" || point != chosen || times.Add(1) != last {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until it strikes
}

// mustChoose panics on what cannot happen: a typo would be a crash that never
// comes.
func mustChoose(text string) (point string, n int64) {
	if text == "" {
		return "", 0
	}
	point, count, _ := strings.Cut(text, ",")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 || !slices.Contains(Points, point) {
		panic(fmt.Sprintf("crash: %s=%q: want POINT,N with one of %s", Variable, text, strings.Join(Points, ", ")))
	}
	return point, n
}
