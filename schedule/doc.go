// Package schedule dispatches messages at given times: by cron expressions or at intervals.
//
// Any number of processes run the same schedules on one database. Each tick is dispatched
// once: the transaction that writes its message also moves the schedule's row past the tick,
// and of several such transactions one commits. The message's id is derived from the tick, so
// that consumers recognise it as well.
//
// The database's clock decides which ticks are due. Ticks at which no process ran are missed:
// [Missed] is the policy for these.
package schedule
