// Package mutant plants known bugs, so that the checks that must catch them can
// be seen to catch them. A check that stays silent over a mutant proves nothing
// about the real program either.
//
// The bugs exist only in binaries built with the tag chaos, and there only in
// the process whose environment names one of them in WAYBILL_MUTANT. Without
// the tag Active is false at compile time and the compiler leaves out the
// branches it guards.
package mutant

const (
	// DeleteBeforeConfirm lets the relay delete outbox rows before the broker
	// confirmed them: a crash or a refused publish in between loses messages.
	DeleteBeforeConfirm = "delete-before-confirm"

	// InboxOutsideTransaction commits the inbox row apart from the writes of
	// the handler: a crash in between loses the effect or repeats it.
	InboxOutsideTransaction = "inbox-outside-transaction"

	// NoDispatchLock lets dispatchers write without the lock on their bucket: a
	// later commit carries a lower id, and the relay sends it out of order.
	NoDispatchLock = "no-dispatch-lock"

	// LockAndReadAtOnce has a claim read rows in the statement that locks: its
	// snapshot is older than the lock, and has rows that the last owner published.
	LockAndReadAtOnce = "lock-and-read-at-once"

	// RepeatableReadRelay has a claim read by one snapshot for its whole transaction,
	// which is older than its locks.
	RepeatableReadRelay = "repeatable-read-relay"

	// TwoInFlight lets the relay publish the next message of a key before the one
	// in front of it is confirmed: if that one is refused, it comes after it.
	TwoInFlight = "two-in-flight"

	// MarkBeforeCommit moves marks before the commit that makes them true: after one
	// that failed, claims begin behind rows that were not published.
	MarkBeforeCommit = "mark-before-commit"

	// IDFromRelay has the relay make the id of a message: a message that is published
	// again has a new id, and is not recognized as a duplicate.
	IDFromRelay = "id-from-relay"

	// AckBeforeCommit acknowledges a message before its effect is committed: one that
	// fails is lost.
	AckBeforeCommit = "ack-before-commit"

	// AckOverUncommitted acknowledges all that came before a message that was
	// handled, whether it was or not.
	AckOverUncommitted = "ack-over-uncommitted"

	// NoSavepointGuard lets a unit of work on MySQL commit although the server has
	// ended its transaction: an effect commits without its inbox row, or messages
	// without the writes they belong to.
	NoSavepointGuard = "no-savepoint-guard"

	// ConfirmBeforeReturn judges a confirm before it looks at the returns that came
	// ahead of it: a message that no queue took counts as delivered.
	ConfirmBeforeReturn = "confirm-before-return"

	// ReturnsNotDrained never looks at returns: all that no queue took counts as
	// delivered.
	ReturnsNotDrained = "returns-not-drained"

	// ReleaseByReinsertion puts the parked rows of a released key back into the
	// outbox, where rows that came since are sent before them.
	ReleaseByReinsertion = "release-by-reinsertion"
)

// All lists them.
func All() []string {
	return []string{NoDispatchLock, LockAndReadAtOnce, RepeatableReadRelay, DeleteBeforeConfirm, ConfirmBeforeReturn, ReturnsNotDrained, TwoInFlight, MarkBeforeCommit,
		IDFromRelay, InboxOutsideTransaction, AckBeforeCommit, AckOverUncommitted, ReleaseByReinsertion, NoSavepointGuard}
}
