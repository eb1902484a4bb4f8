package sim

// Mutants are the bugs that can be planted in the models of a run. internal/test/mutant
// plants bugs of the same names in production code.
const (
	// NoDispatchLock lets dispatchers write without the lock on their bucket.
	NoDispatchLock = "no-dispatch-lock"
	// LockAndReadAtOnce makes a claim read by a snapshot that is older than its locks.
	LockAndReadAtOnce = "lock-and-read-at-once"
	// DeleteBeforeConfirm deletes rows before the broker confirms them.
	DeleteBeforeConfirm = "delete-before-confirm"
	// TwoInFlight publishes the next message of a key before the first is confirmed.
	TwoInFlight = "two-in-flight"
	// MarkBeforeCommit moves read positions before the commit that deletes the rows.
	MarkBeforeCommit = "mark-before-commit"
	// IDFromRelay gives a message a new id each time it is published.
	IDFromRelay = "id-from-relay"
	// InboxOutsideTransaction commits the inbox row apart from the effect.
	InboxOutsideTransaction = "inbox-outside-transaction"
	// AckBeforeCommit acknowledges a message before its effect is committed.
	AckBeforeCommit = "ack-before-commit"
	// ReturnsNotDrained takes an unroutable message for a delivered one.
	ReturnsNotDrained = "returns-not-drained"
	// AckOverUncommitted acknowledges all earlier messages along with a handled one.
	AckOverUncommitted = "ack-over-uncommitted"
	// ReleaseByReinsertion gives the rows of a released key new ids.
	ReleaseByReinsertion = "release-by-reinsertion"
	// RetryBehind retries a failed message behind the later ones of its key.
	RetryBehind = "retry-behind"
	// AckBeforeStore acknowledges a failed message before the retry queue has it.
	AckBeforeStore = "ack-before-store"
	// ReplayOutsideTransaction takes dead letters away before the transaction that puts them
	// into the retry queue.
	ReplayOutsideTransaction = "replay-outside-transaction"
	// DivertedKeysForgotten handles messages without a look at the retry queue.
	DivertedKeysForgotten = "diverted-keys-forgotten"
	// VersionBeforeLock makes a claim read the versions of its buckets before it locks
	// them: cursors stay valid after the entries that they depend on were deleted.
	VersionBeforeLock = "version-before-lock"
	// UnblockWithoutBump deletes a key's entry without raising its bucket's version.
	UnblockWithoutBump = "unblock-without-bump"
	// RetryWithoutEntryLock lets several relays retry the same head at once.
	RetryWithoutEntryLock = "retry-without-entry-lock"
	// ParkWithNewIDs gives the rows of a parked key new ids, which may be higher than the
	// ids of rows that commit later.
	ParkWithNewIDs = "park-with-new-ids"
	// ReleaseWithoutLock moves the rows of a key back without the lock of its bucket.
	ReleaseWithoutLock = "release-without-lock"
	// ReleaseEndsEarly unblocks a key while some of its rows are still parked.
	ReleaseEndsEarly = "release-ends-early"
)

// Mutants lists all mutants.
func Mutants() []string {
	return []string{NoDispatchLock, LockAndReadAtOnce, DeleteBeforeConfirm, TwoInFlight, MarkBeforeCommit, IDFromRelay,
		InboxOutsideTransaction, AckBeforeCommit, ReturnsNotDrained, AckOverUncommitted, RetryBehind,
		AckBeforeStore, ReplayOutsideTransaction, DivertedKeysForgotten,
		VersionBeforeLock, UnblockWithoutBump, RetryWithoutEntryLock, ParkWithNewIDs,
		ReleaseByReinsertion, ReleaseWithoutLock, ReleaseEndsEarly}
}
