// Package schedule dispatches messages at given times: by cron expressions or at intervals.
//
// Any number of processes run the same schedules on one database. Each tick is dispatched
// once: the transaction that writes its message also moves the schedule's row past the tick,
// and of several such transactions one commits. The message's id is derived from the tick, so
// that consumers recognise it as well.
//
// Ids come from the name of the schedule and the tick alone. So names differ among all
// schedulers whose messages reach one consumer, also where these have databases of their own:
// of two messages with one id an inbox takes the second for a duplicate. A prefix, such as the
// tenant or the region, makes a name unique.
//
// The database's clock decides which ticks are due. Ticks at which no process ran are missed:
// [Missed] is the policy for these.
package schedule
