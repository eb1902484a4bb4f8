package waypg_test

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/findings"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waypg"
)

func TestHealthyDatabaseHasNoFindings(t *testing.T) {
	t.Parallel()
	for _, cfg := range []waypg.Config{{}, {Schema: "messaging", Prefix: "a_long_prefix_for_"}} {
		db := openAt(t, testserver.Postgres(t), cfg)
		if got := findings.Of(t, db, admin.DefaultExamination()); len(got) > 0 {
			t.Errorf("%+v: got %v, want none", cfg, got)
		}
	}
}

// Each index that is dropped is a finding, also those that have no name in the schema.
func TestEveryMissingIndexIsAFinding(t *testing.T) {
	t.Parallel()
	db := openAt(t, testserver.Postgres(t), waypg.Config{})
	rows, err := db.Pool().Query(t.Context(), `SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
		WHERE c.relnamespace = 'public'::regnamespace AND NOT EXISTS (SELECT 1 FROM pg_constraint AS k WHERE k.conindid = c.oid)`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 15 {
		t.Fatalf("%d indexes, %v", len(names), err)
	}
	for i, name := range names {
		exec(t, db, "DROP INDEX "+name)
		if got := findings.Of(t, db, admin.DefaultExamination()); len(got) != i+1 || !findings.Has(got, admin.MissingIndex, "(") {
			t.Fatalf("without %s: %d findings, want %d: %v", name, len(got), i+1, got)
		}
	}
	exec(t, db, "ALTER TABLE waybill_inbox DROP CONSTRAINT waybill_inbox_pkey")
	if got := findings.Of(t, db, admin.DefaultExamination()); !findings.Has(got, admin.MissingIndex, "waybill_inbox (handler, dedup_key)") {
		t.Errorf("without the primary key: %v", got)
	}
}

func TestChangedTablesAreFindings(t *testing.T) {
	t.Parallel()
	db := openAt(t, testserver.Postgres(t), waypg.Config{})
	exec(t, db, "ALTER TABLE waybill_outbox RESET (autovacuum_vacuum_scale_factor)")
	exec(t, db, "ALTER TABLE waybill_queue SET (autovacuum_enabled = false)")
	got := findings.Of(t, db, admin.DefaultExamination())
	if len(got) != 2 || !findings.Has(got, admin.AutovacuumOff, "waybill_outbox has lost") ||
		!findings.Has(got, admin.AutovacuumOff, "waybill_queue has autovacuum_enabled = false") {
		t.Errorf("got %v", got)
	}
}

func TestTablesThatLoseMessagesOrTheirOrderAreFindings(t *testing.T) {
	t.Parallel()
	for _, cfg := range []waypg.Config{{}, {Schema: "messaging", Prefix: "mq_"}} {
		db := openAt(t, testserver.Postgres(t), cfg)
		table := func(name string) string {
			return cmp.Or(cfg.Schema, "public") + "." + cmp.Or(cfg.Prefix, "waybill_") + name
		}
		exec(t, db, "ALTER TABLE "+table("outbox")+" SET UNLOGGED")
		exec(t, db, "ALTER TABLE "+table("inbox")+" SET UNLOGGED")
		for _, ordered := range []string{"queue", "retry", "failed"} {
			exec(t, db, "ALTER TABLE "+table(ordered)+" ALTER COLUMN id SET CACHE 50")
		}
		exec(t, db, "ALTER TABLE "+table("outbox_unkeyed")+" ALTER COLUMN id SET CACHE 50") // it has no order
		got := findings.Of(t, db, admin.DefaultExamination())
		for _, name := range []string{"outbox", "inbox"} {
			if !findings.Has(got, admin.UnloggedTable, cmp.Or(cfg.Prefix, "waybill_")+name+" is unlogged") {
				t.Errorf("%+v: got %v, want the unlogged %s", cfg, got, name)
			}
		}
		if len(got) != 5 || !findings.Has(got, admin.SequenceCache, cmp.Or(cfg.Prefix, "waybill_")+"queue caches 50 ids") {
			t.Errorf("%+v: got %v, want two unlogged tables and three sequences", cfg, got)
		}
	}
}

func TestOpenTransactionsAreFindings(t *testing.T) {
	t.Parallel()
	db := openAt(t, testserver.Postgres(t), waypg.Config{})
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	var pid int
	if err := tx.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	session := fmt.Sprintf("session %d ", pid)
	at := admin.Examination{Now: time.Now}
	if got := findings.Of(t, db, at); len(got) != 2 || !findings.Has(got, admin.OldTransaction, session) || !findings.Has(got, admin.IdleTransaction, session) {
		t.Errorf("got %v, want both of session %d", got, pid)
	}
	at.OldTransaction = time.Hour
	if got := findings.Of(t, db, at); len(got) != 1 || !findings.Has(got, admin.IdleTransaction, session) {
		t.Errorf("got %v, want that it idles", got)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := findings.Of(t, db, admin.Examination{Now: time.Now}); len(got) != 0 {
		t.Errorf("after the rollback: %v", got)
	}
}

func TestServerThatForgetsCommitsIsAFinding(t *testing.T) {
	t.Parallel()
	server := testserver.StartPostgres(t, map[string]string{"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "max_connections": "12"})
	db := openAt(t, server.URL()+"&pool_max_conns=10", waypg.Config{})
	exec(t, db, "SELECT pg_create_physical_replication_slot('new'), pg_create_physical_replication_slot('left', true)")
	at := admin.DefaultExamination()
	at.Now = func() time.Time { return time.Now().Add(-150 * time.Minute) }
	got := findings.Of(t, db, at)
	if len(got) != 6 || !findings.Has(got, admin.InactiveSlot, "the replication slot left") || !findings.Has(got, admin.FewConnections, "max_connections is 12, and one process uses up to 10") || !findings.Has(got, admin.NotDurable, "fsync is off") || !findings.Has(got, admin.NotDurable, "full_page_writes is off") ||
		!findings.Has(got, admin.AutovacuumOff, "autovacuum is off") || !findings.Has(got, admin.ClockSkew, "clock is 2h") || !findings.Has(got, admin.ClockSkew, "ahead of this machine's") {
		t.Errorf("got %v", got)
	}
}
