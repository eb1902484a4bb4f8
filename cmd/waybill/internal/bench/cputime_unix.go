//go:build unix

package bench

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time that this process has used, in its code and in the kernel.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}
