// Package outbox sends messages if and only if the transaction that dispatched
// them commits, and in the order in which such transactions committed for each
// partition key.
//
// [Outbox] writes a message into the application's own transaction. [Relay]
// moves committed messages to a broker: it publishes strictly in order per key,
// all keys in parallel, and deletes a row only after the broker confirmed it.
// Both work on one database, through the small interfaces [Writer] and [Store]
// that a leaf package such as waysqlite implements.
//
// A relay claims three parts of a transport apart: rows of keys that are not
// blocked, rows without a key, and retries. A refused row blocks its key, and is
// retried over a separate connection, one at a time, so that it delays no other
// key. After [RelayConfig].MaxAttempts refusals its [Policy] is followed: the key
// stays blocked, is parked until an operator releases it, or continues without
// the message, which becomes a dead letter.
package outbox
