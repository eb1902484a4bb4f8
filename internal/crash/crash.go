// Package crash names the points of work at which a test may kill a process.
package crash

// Hook is called at each point, by any goroutine. It is set by tests, before anything else runs.
var Hook func(point string)

// At is a point.
func At(point string) {
	if Hook != nil {
		Hook(point)
	}
}

// The points.
const (
	DispatchBeforeCommit = "dispatch-before-commit"             // a unit of work whose function has returned
	DispatchAfterCommit  = "dispatch-after-commit"              // a unit of work that is committed and has not returned
	RelayAfterClaim      = "relay-after-claim"                  // a relay that has claimed and published nothing
	RelayInPublish       = "relay-in-publish"                   // one that has results for a part of its published messages
	RelayAfterPublish    = "relay-after-publish"                // one whose batch is confirmed and not settled
	RelayAfterSettle     = "relay-after-settle"                 // one whose batch is settled
	WorkerBeforeCommit   = "worker-after-handler-before-commit" // an inbox handler that has returned
	WorkerBeforeAck      = "worker-after-commit-before-ack"     // a worker that has handled a message
	WorkerBeforeStore    = "worker-after-failure-before-store"  // a worker that has failed messages of its transport to store
	WorkerAfterStore     = "worker-after-store-before-ack"      // one that has stored them and not acknowledged them
	WorkerBeforeMove     = "worker-before-move"                 // a worker that has failed messages of its retry queue to move
	WorkerAfterMove      = "worker-after-move"                  // one that has moved them
	WorkerBeforeRetryAck = "worker-before-retry-ack"            // a worker that has handled messages of its retry queue
	WorkerAfterRetryAck  = "worker-after-retry-ack"             // one that has acknowledged them
)
