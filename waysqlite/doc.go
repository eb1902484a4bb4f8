// Package waysqlite keeps the outbox, the inbox and queues in a SQLite file,
// through modernc.org/sqlite.
//
// The file is in WAL mode with synchronous=FULL, so that a commit survives the
// loss of power. SQLite has one writer: a [DB] has one connection that writes
// and some that read, and units of work of one process queue for it. One
// process relays a file at a time, elected by a lock of the operating system on
// FILE.relay; another takes over as soon as that process has ended, however it
// ended.
package waysqlite
