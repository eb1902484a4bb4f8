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

	// TwoClocks has a claim judge by a later clock which keys are due than the one by
	// which it begins behind those that are not.
	TwoClocks = "two-clocks"
	// RetryBehind puts a message that failed behind those of its key.
	RetryBehind = "retry-behind"
	// ReleaseWithoutLock sends what is parked of a key without the lock on its bucket.
	ReleaseWithoutLock = "release-without-lock"
	// ReleaseEndsEarly lets a key go on in the outbox while some of it is parked.
	ReleaseEndsEarly = "release-ends-early"
)

// Mutants lists all of them.
func Mutants() []string {
	return []string{NoDispatchLock, LockAndReadAtOnce, TwoClocks, DeleteBeforeConfirm, TwoInFlight, MarkBeforeCommit, IDFromRelay,
		InboxOutsideTransaction, AckBeforeCommit, ReturnsNotDrained, AckOverUncommitted, RetryBehind,
		ReleaseByReinsertion, ReleaseWithoutLock, ReleaseEndsEarly}
}
