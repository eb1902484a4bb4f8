// Package waytest holds the conformance suites: the promises of waybill about a
// database, as tests that every database runs on a real server.
//
// A package that keeps an outbox, an inbox or queues in a database has a function
// that makes an empty one as a [Harness], and its tests pass the function to the suites:
//
//	func TestOutbox(t *testing.T) { waytest.Outbox(t, harness) }
//	func TestInbox(t *testing.T)  { waytest.Inbox(t, harness) }
//	func TestQueue(t *testing.T)  { waytest.Queue(t, harness) }
//	func TestRetries(t *testing.T) { waytest.Retries(t, harness) }
//
//	func harness(t *testing.T) waytest.Harness[*sql.Tx] {
//		db := open(t) // tables of t's own, and empty
//		p := waytest.SQLHarness(t, db, db.Pool(), "business")
//		p.Queue = func(name string, lease time.Duration) (waytest.Transport, error) {
//			return db.Queue(name, waymysql.QueueConfig{Lease: lease})
//		}
//		return p
//	}
//
// [SQLHarness] fills in what any *sql.DB can do; for another library of
// transactions the fields are filled by hand. The fields that may be nil are
// abilities: a case that needs one which is missing is skipped and says so.
// Further interfaces of the [Store] are detected: admin.Database, admin.Retries, admin.DeadLetters,
// [DeadLetters], inbox.Store and inbox.Log.
//
// Each case is named for its promise and has its own harness, so all run in
// parallel. A defect found in one database becomes a case for all of them. One
// case is run by
//
//	go test -run 'TestOutbox/.*LateCommitIsNotOvertaken' ./waymysql
package waytest
