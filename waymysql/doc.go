// Package waymysql keeps outbox, inbox and queues in MySQL (8.0.19 or later) or
// MariaDB (10.6 or later).
//
// Transactions are *sql.Tx. Database and table prefix are configurable and every
// statement is qualified, so nothing depends on the connection's database. Times
// are kept in UTC, whatever the session's time zone.
//
// The outbox keeps its order by these means:
//
//   - A key belongs to one of 64 buckets. A dispatcher locks the bucket's row of
//     the gate table before its row gets an id and holds it to its commit, so ids
//     inside a bucket are in commit order.
//   - A relay locks rows of another small table of buckets, which dispatchers
//     never touch, and reads those buckets in a later statement under READ
//     COMMITTED. The locks end with its transaction, which it keeps open while it
//     publishes and in which it deletes the confirmed rows.
//   - Because ids are in commit order, a relay remembers per bucket below which
//     id there is nothing left, and rows that are not purged yet cost it nothing. A
//     sentinel row at the head of each bucket ends the scan of the one before it:
//     InnoDB notices the end of a range at a live row only.
//   - A refused key has an entry in a separate table, made under its bucket's
//     lock. Claims of keyed rows leave the key out; the lock on the entry is the
//     right to retry its head.
//
// Messages without a key are in another table. They have no order, and relays share
// them row by row.
//
// The server may end a transaction under its user: it rolls back for a deadlock,
// and commits for DDL. The statements that follow would then commit one by one.
// A unit of work runs with autocommit off, behind a savepoint that must still be
// there at its end: if it is not, nothing is committed, and the error wraps
// waybill.ErrTransactionLost. The session is one of waybill's own connections (Open), or
// one that the caller's pool lends (New). In a transaction of the caller's own neither is
// possible: there an error of Dispatch must end the transaction.
package waymysql
