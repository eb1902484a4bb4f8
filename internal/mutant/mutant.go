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

	// UnserializedMark reads rows that took no dispatch lock from behind a mark: one
	// that commits late is passed over by the next of its key.
	UnserializedMark = "unserialized-mark"

	// NoSavepointGuard lets a unit of work on MySQL commit although the server has
	// ended its transaction: an effect commits without its inbox row, or messages
	// without the writes they belong to.
	NoSavepointGuard = "no-savepoint-guard"

	// ReturnsNotDrained judges a confirm without looking at the returns that came
	// before it: a message that no queue took counts as delivered.
	ReturnsNotDrained = "returns-not-drained"
)

// All lists them.
func All() []string {
	return []string{NoDispatchLock, DeleteBeforeConfirm, ReturnsNotDrained, InboxOutsideTransaction, UnserializedMark, NoSavepointGuard}
}
