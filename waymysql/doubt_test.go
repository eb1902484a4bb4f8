package waymysql_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/waymysql"
)

// A message that is handled changes no index of the inbox after its entry was inserted: its
// time is that of the insert. An entry in doubt outlives the retention.
func TestDoubtIsInNoIndex(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{Retention: time.Second})
	b := newBilling(t, db)
	const indexed = "SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'waybill_inbox' AND column_name = ?"
	if n := count(t, db, indexed, "in_doubt"); n != 0 || count(t, db, indexed, "processed_at") == 0 {
		t.Errorf("%d indexes have in_doubt, and some must have processed_at", n)
	}
	const at = "SELECT processed_at FROM waybill_inbox WHERE message_id = ?"
	rec := record(t, order{"k", 1})
	var during, after string
	b.after = func(ctx context.Context, tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, at, rec.ID[:]).Scan(&during)
	}
	if err := b.receive(rec); err != nil {
		t.Fatal(err)
	}
	if err := db.Pool().QueryRowContext(t.Context(), at, rec.ID[:]).Scan(&after); err != nil || after != during || b.remembered(rec.ID) != 1 {
		t.Errorf("processed_at is %q while the message is handled, and %q, %v, and certain for %d afterwards", during, after, err, b.remembered(rec.ID))
	}
	b.after = func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "TRUNCATE TABLE other")
		return err
	}
	doubtful := record(t, order{"k", 2})
	if err := b.receive(doubtful); err == nil {
		t.Error("a handler with a statement that commits was acknowledged")
	}
	exec(t, db, "UPDATE waybill_inbox SET processed_at = processed_at - INTERVAL 1 DAY")
	if n, err := db.PruneExpired(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("PruneExpired = %d, %v, want the certain entry alone", n, err)
	}
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_inbox WHERE message_id = ? AND in_doubt = 1", doubtful.ID[:]); n != 1 {
		t.Errorf("%d entries in doubt are left, want 1", n)
	}
}

// A page of the latest entries is as long as there are certain ones: the next one is read
// behind a full page only.
func TestEntryInDoubtShortensNoPage(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	b := newBilling(t, db)
	for i := range 5 {
		if err := b.receive(record(t, order{"k", i})); err != nil {
			t.Fatal(err)
		}
	}
	all, err := db.InboxEntries(t.Context(), admin.InboxQuery{})
	if err != nil || len(all) != 5 {
		t.Fatalf("InboxEntries = %+v, %v", all, err)
	}
	exec(t, db, "UPDATE waybill_inbox SET in_doubt = 1 WHERE message_id = ?", all[1].MessageID[:])
	page, err := db.InboxEntries(t.Context(), admin.InboxQuery{Limit: 3})
	if err != nil || len(page) != 3 || page[0] != all[0] || page[1] != all[2] || page[2] != all[3] {
		t.Errorf("InboxEntries = %+v, %v, want the first, third and fourth of %+v", page, err, all)
	}
}
