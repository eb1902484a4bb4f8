// Package outbox sends messages if and only if the transaction that dispatched
// them commits, and in the order in which such transactions committed for each
// partition key.
//
// [Outbox] writes a message into the application's own transaction. [Relay]
// moves what was committed to a broker: it publishes strictly in order per key,
// all keys in parallel, and deletes a row only after the broker confirmed it.
// Both work on one database, through the small interfaces [Writer] and [Store]
// that a leaf package such as waysqlite implements.
package outbox
