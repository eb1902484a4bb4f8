package sim

import "github.com/waybill-go/waybill/internal/test/mutant"

// Mutants are the bugs that can be planted in a run. This package plants the bugs of
// package mutant in its models, not in production code.
const (
	NoDispatchLock          = mutant.NoDispatchLock
	LockAndReadAtOnce       = mutant.LockAndReadAtOnce
	DeleteBeforeConfirm     = mutant.DeleteBeforeConfirm
	TwoInFlight             = mutant.TwoInFlight
	MarkBeforeCommit        = mutant.MarkBeforeCommit
	IDFromRelay             = mutant.IDFromRelay
	InboxOutsideTransaction = mutant.InboxOutsideTransaction
	AckBeforeCommit         = mutant.AckBeforeCommit
	ReturnsNotDrained       = mutant.ReturnsNotDrained
	AckOverUncommitted      = mutant.AckOverUncommitted
	ReleaseByReinsertion    = mutant.ReleaseByReinsertion

	// RetryBehind retries a failed message behind the later ones of its key.
	RetryBehind = "retry-behind"
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
		VersionBeforeLock, UnblockWithoutBump, RetryWithoutEntryLock, ParkWithNewIDs,
		ReleaseByReinsertion, ReleaseWithoutLock, ReleaseEndsEarly}
}
