// Package history keeps counts and latencies of the last seven days in the database, a row
// for each minute, transport, message name and handler. It needs no other service.
//
//	recorder, err := history.New(db, history.Config{})
//	go recorder.Run(ctx) // and wait for it at the end
//	outbox.Config{Observer: recorder}
//
// A Recorder sums in memory and writes once a minute; the rows of several processes add up.
// It may lose a minute, and holds up no message: counts that cannot be written are dropped.
// The commands of waycli have one; another program gives it to its outboxes, relays and
// workers as their Observer.
package history
