// Package memory keeps outbox, inbox and queues in the process, for tests and
// for trying things out. It passes the conformance suites of databases and brokers,
// so code that works on it can be moved to one of them.
//
// A [DB] is a database: its transactions are of type [*Tx], its [Queue] is a
// transport. Nothing polls but the relay, so testing/synctest works around all
// of it: delays, retries and leases cost no time there. Make the DB inside the
// bubble.
//
// A key that a relay parks stays parked: there is no operator who releases it.
//
// [Sync] is a transport without a queue: messages are handled at once.
package memory
