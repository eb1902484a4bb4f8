package outbox

import (
	"cmp"
	"fmt"
	"time"
)

// fenceMargin allows for clock drift and scheduling delays.
const fenceMargin = 2 * time.Second

// A SettingError reports a setting, of the configuration or of the server, that keeps
// a relay from running. Retrying does not help until the setting is changed.
type SettingError struct{ Err error }

func (e *SettingError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *SettingError) Unwrap() error { return e.Err }

// CheckFence returns a *SettingError for a configuration in which a relay that froze
// could publish after its rows went to another one. The database counts its idle
// timeout from the relay's last statement; the broker's heartbeats count from the
// moment it froze, which may be as late as the publish deadline (zero means 10 s), and
// end within three of them.
func CheckFence(idle, deadline time.Duration, to Publisher) error {
	deadline = cmp.Or(deadline, defaultPublishDeadline)
	heartbeat := to.Traits().Heartbeat
	if need := deadline + 3*heartbeat + fenceMargin; idle < need {
		return &SettingError{fmt.Errorf("outbox: relay config: the idle timeout %v of the database is shorter than the publish deadline %v, three heartbeats of %v and %v together: a relay that froze could publish out of order; raise the idle timeout to %v, or lower the others",
			idle, deadline, heartbeat, fenceMargin, need)}
	}
	return nil
}
