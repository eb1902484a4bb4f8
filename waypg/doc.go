// Package waypg keeps outbox, inbox and queues in PostgreSQL (12 or later).
//
// A DB is used with pgx transactions; its SQL method returns the same for
// *sql.Tx. Schema and table prefix are configurable and every statement is
// qualified, so nothing depends on a search path. It works behind a pooler in
// transaction mode: no session state, and no named statements there.
//
// Relays poll. With Config.Notify they also hear of commits in other processes,
// on connections besides those of the pool.
//
// What makes the outbox keep its order:
//
//   - A key belongs to one of 64 buckets. A dispatcher takes the bucket's
//     advisory lock before its row gets an id and holds it to its commit, so
//     ids inside a bucket are in commit order.
//   - A relay locks rows of a small table of buckets, and reads those buckets
//     in a later statement. The locks end with its transaction, which it keeps
//     open while it publishes and in which it deletes the confirmed rows.
//   - Because ids are in commit order, a relay keeps a low-water mark for each
//     bucket, an id below which no row is left, and dead rows cost it nothing.
package waypg
