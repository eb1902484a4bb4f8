package admin

import (
	"fmt"
	"time"
)

// An Examination holds the limits of the findings of a database.
type Examination struct {
	OldTransaction  time.Duration    // age from which on an open transaction is a finding
	IdleTransaction time.Duration    // the same of a session that idles in one
	Now             func() time.Time // clock of this process
}

// DefaultExamination has the limits of the command doctor.
func DefaultExamination() Examination {
	return Examination{OldTransaction: 10 * time.Minute, IdleTransaction: time.Minute, Now: time.Now}
}

// maxSkew is the difference of clocks that leases and delays bear.
const maxSkew = time.Second

// Skew compares the server's clock with that of this process, which read the clock before
// and after the server did. The time of the round trip is no difference.
func Skew(before, server, after time.Time) []Finding {
	ahead := server.Sub(after)
	if behind := server.Sub(before); behind < 0 {
		ahead = behind
	}
	if ahead.Abs() <= maxSkew || !server.Before(before) && !server.After(after) {
		return nil
	}
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	return []Finding{NewFinding(ClockSkew,
		fmt.Sprintf("the server's clock is %v %s this machine's", ahead.Abs().Round(100*time.Millisecond), direction),
		"synchronize both clocks (NTP): delays and retention count from both")}
}
