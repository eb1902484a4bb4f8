package waypg

import "time"

// SetHeartbeat gives the listener of a DB that does not relay yet a shorter
// heartbeat than five seconds.
func (db *DB) SetHeartbeat(d time.Duration) { db.listener.heartbeat = d }

// SetNotifyEvery gives the notifier of a DB that has committed nothing yet
// another window than ten milliseconds.
func (db *DB) SetNotifyEvery(d time.Duration) { db.notifier.every = d }
