package waytest_test

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/waytest"
)

// The suites of a package that keeps outbox, inbox and queues in a database.
func Example() {
	open := func(t *testing.T) waytest.Harness[*sql.Tx] {
		db, err := waysqlite.Open(t.Context(), filepath.Join(t.TempDir(), "test.db"), waysqlite.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		if _, err := db.SchemaUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		p := waytest.SQLHarness(t, db, db.SQL(), "business")
		p.OneWriter, p.OneClaim = true, true
		p.Queue = func(name string, lease time.Duration) (waytest.Transport, error) {
			return db.Queue(name, waysqlite.QueueConfig{Lease: lease})
		}
		return p
	}
	_ = []testing.InternalTest{
		{Name: "TestOutbox", F: func(t *testing.T) { waytest.Outbox(t, open) }},
		{Name: "TestInbox", F: func(t *testing.T) { waytest.Inbox(t, open) }},
		{Name: "TestQueue", F: func(t *testing.T) { waytest.Queue(t, open) }},
	}
}
