// Package waytest holds the conformance suites: what waybill promises of a
// database, as tests that every database runs on a real server.
//
// A package that keeps an outbox, an inbox or queues in a database says how an
// empty one is made, as a [Place], and hands that to the suites from a test of
// its own:
//
//	func TestOutbox(t *testing.T) { waytest.Outbox(t, place) }
//	func TestInbox(t *testing.T)  { waytest.Inbox(t, place) }
//	func TestQueue(t *testing.T)  { waytest.Queue(t, place) }
//
//	func place(t *testing.T) waytest.Place[*sql.Tx] {
//		db := open(t) // tables of t's own, and empty
//		p := waytest.SQLPlace(t, db, db.Pool(), "business")
//		p.Queue = func(name string, lease time.Duration) (waytest.Transport, error) {
//			return db.Queue(name, waymysql.QueueConfig{Lease: lease})
//		}
//		return p
//	}
//
// [SQLPlace] fills in what any *sql.DB can do; for another library of
// transactions the fields are filled by hand. The fields that may be nil are
// abilities: a case that needs one which is missing is skipped and says so.
// What the store implements beside [Store] is found by itself: outbox.RouteStore,
// admin.Database, inbox.Store and inbox.Log.
//
// Each case is named for its promise and has a place of its own, so all run in
// parallel. A defect found in one database becomes a case for all of them. One
// case is run by
//
//	go test -run 'TestOutbox/.*LateCommitIsNotOvertaken' ./waymysql
package waytest
