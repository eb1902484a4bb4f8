//go:build !unix

package bench

import (
	"errors"
	"time"
)

func cpuTime() (time.Duration, error) {
	return 0, errors.New("the CPU time of a process is not known on this system")
}
