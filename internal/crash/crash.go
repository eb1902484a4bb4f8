// Package crash kills a process at a named point of its work, so that a test can
// check the state that must survive it.
//
// It does so only in binaries built with the tag chaos, and there only in the
// process whose environment says WAYBILL_CRASH_AT=POINT,N: it dies by SIGKILL
// when it comes to that point for the N-th time. Without the tag At does
// nothing and the compiler leaves it out.
package crash

// The points.
const (
	// DispatchBeforeCommit is a unit of work whose function has returned.
	DispatchBeforeCommit = "dispatch-before-commit"
	// DispatchAfterCommit is a unit of work that is committed and has not returned.
	DispatchAfterCommit = "dispatch-after-commit"
	// RelayAfterClaim is a relay that has claimed and published nothing.
	RelayAfterClaim = "relay-after-claim"
	// RelayInPublish is one that has results for a part of its published messages.
	RelayInPublish = "relay-in-publish"
	// RelayAfterPublish is one whose batch is confirmed and not settled.
	RelayAfterPublish = "relay-after-publish"
	// RelayAfterSettle is one whose batch is settled.
	RelayAfterSettle = "relay-after-settle"
	// WorkerBeforeCommit is an inbox handler that has returned.
	WorkerBeforeCommit = "worker-after-handler-before-commit"
	// WorkerBeforeAck is a worker that has handled a message.
	WorkerBeforeAck = "worker-after-commit-before-ack"
	// WorkerBeforeStore is a worker that has failed messages of its transport to store.
	WorkerBeforeStore = "worker-after-failure-before-store"
	// WorkerAfterStore is one that has stored them and not acknowledged them.
	WorkerAfterStore = "worker-after-store-before-ack"
	// WorkerBeforeMove is a worker that has failed messages of its retry queue to move.
	WorkerBeforeMove = "worker-before-move"
	// WorkerAfterMove is one that has moved them.
	WorkerAfterMove = "worker-after-move"
	// WorkerBeforeRetryAck is a worker that has handled messages of its retry queue.
	WorkerBeforeRetryAck = "worker-before-retry-ack"
	// WorkerAfterRetryAck is one that has acknowledged them.
	WorkerAfterRetryAck = "worker-after-retry-ack"
)

// Points are all there are. The part before the first dash is the role.
var Points = []string{
	DispatchBeforeCommit, DispatchAfterCommit,
	RelayAfterClaim, RelayInPublish, RelayAfterPublish, RelayAfterSettle,
	WorkerBeforeCommit, WorkerBeforeAck,
	WorkerBeforeStore, WorkerAfterStore, WorkerBeforeMove, WorkerAfterMove, WorkerBeforeRetryAck, WorkerAfterRetryAck,
}
