package sim

import "github.com/waybill-go/waybill/internal/mutant"

// Mutants are the bugs that can be planted in a run. Those of package mutant are
// planted in the models here, and in production code there.
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

	// RetryBehind puts a message that failed behind those of its key.
	RetryBehind = "retry-behind"
	// VersionBeforeLock has a claim read the versions of its buckets before it locks
	// them: cursors hold longer than the entries that they rest on.
	VersionBeforeLock = "version-before-lock"
	// UnblockWithoutBump deletes a key's entry and leaves its bucket's version alone.
	UnblockWithoutBump = "unblock-without-bump"
	// RetryWithoutEntryLock has several relays retry one head at a time.
	RetryWithoutEntryLock = "retry-without-entry-lock"
	// ParkWithNewIDs gives the rows of a parked key new ids, which are higher than those
	// of rows that commit later.
	ParkWithNewIDs = "park-with-new-ids"
	// ReleaseWithoutLock brings the rows of a key back without the lock of its bucket.
	ReleaseWithoutLock = "release-without-lock"
	// ReleaseEndsEarly unblocks a key while some of it is set aside.
	ReleaseEndsEarly = "release-ends-early"
)

// Mutants lists all of them.
func Mutants() []string {
	return []string{NoDispatchLock, LockAndReadAtOnce, DeleteBeforeConfirm, TwoInFlight, MarkBeforeCommit, IDFromRelay,
		InboxOutsideTransaction, AckBeforeCommit, ReturnsNotDrained, AckOverUncommitted, RetryBehind,
		VersionBeforeLock, UnblockWithoutBump, RetryWithoutEntryLock, ParkWithNewIDs,
		ReleaseByReinsertion, ReleaseWithoutLock, ReleaseEndsEarly}
}
