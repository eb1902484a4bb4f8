package sim

import "github.com/waybill-go/waybill/internal/mutant"

// Mutants are the bugs that can be planted in a run.
const (
	NoDispatchLock          = mutant.NoDispatchLock
	DeleteBeforeConfirm     = mutant.DeleteBeforeConfirm
	InboxOutsideTransaction = mutant.InboxOutsideTransaction
	ReturnsNotDrained       = mutant.ReturnsNotDrained

	// LockAndReadAtOnce has a claim read in the statement that locks: what it reads
	// is older than its lock.
	LockAndReadAtOnce = "lock-and-read-at-once"
	// TwoClocks has a claim judge by a later clock which keys are due than the one by
	// which it begins behind those that are not.
	TwoClocks = "two-clocks"
	// TwoInFlight has two messages of a key unconfirmed at once, in calls of their own.
	TwoInFlight = "two-in-flight"
	// MarkBeforeCommit moves marks before the commit that makes them true.
	MarkBeforeCommit = "mark-before-commit"
	// IDFromRelay has the relay make the id of a message.
	IDFromRelay = "id-from-relay"
	// AckBeforeCommit acknowledges a message before its effect is committed.
	AckBeforeCommit = "ack-before-commit"
	// AckOverUncommitted acknowledges all that came before a message that was
	// handled, whether it was or not.
	AckOverUncommitted = "ack-over-uncommitted"
	// RetryBehind puts a message that failed behind those of its key.
	RetryBehind = "retry-behind"
)

// Mutants lists all of them.
func Mutants() []string {
	return []string{NoDispatchLock, LockAndReadAtOnce, TwoClocks, DeleteBeforeConfirm, TwoInFlight, MarkBeforeCommit, IDFromRelay,
		InboxOutsideTransaction, AckBeforeCommit, ReturnsNotDrained, AckOverUncommitted, RetryBehind}
}
