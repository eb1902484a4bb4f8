package outbox

import (
	"fmt"
	"time"
)

// fenceMargin is for clocks and schedulers.
const fenceMargin = 2 * time.Second

// checkFence refuses a configuration in which a relay that froze could publish
// after its rows went to another one. The database counts from the relay's last
// statement; the broker's heartbeats count from the moment it froze, which may
// be as late as the publish deadline, and end within three of them.
func checkFence(store Store, to Publisher, cfg RelayConfig) error {
	idle, ok := store.(IdleStore)
	if !ok {
		return nil
	}
	var heartbeat time.Duration
	if beating, ok := to.(HeartbeatPublisher); ok {
		heartbeat = beating.Heartbeat()
	}
	if need := cfg.PublishDeadline + 3*heartbeat + fenceMargin; idle.IdleTimeout() < need {
		return fmt.Errorf("outbox: relay config: the idle timeout %v of the database is shorter than the publish deadline %v, three heartbeats of %v and %v together: a relay that froze could publish out of order; raise the idle timeout to %v, or lower the others",
			idle.IdleTimeout(), cfg.PublishDeadline, heartbeat, fenceMargin, need)
	}
	return nil
}
