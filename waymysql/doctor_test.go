package waymysql_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/findings"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waymysql"
)

func TestHealthyDatabaseHasNoFindings(t *testing.T) {
	t.Parallel()
	for _, cfg := range []waymysql.Config{{}, {Prefix: "a_long_prefix_for_"}} {
		db, _ := newDB(t, cfg)
		if got := findings.Of(t, db, admin.DefaultExamination()); len(got) > 0 {
			t.Errorf("%+v: got %v, want none", cfg, got)
		}
	}
}

func TestEveryMissingIndexIsAFinding(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	rows, err := db.Pool().QueryContext(t.Context(), `SELECT DISTINCT CONCAT('ALTER TABLE ', table_name, ' DROP INDEX ', index_name)
		FROM information_schema.statistics WHERE table_schema = DATABASE() AND index_name LIKE 'waybill%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var drops []string
	for rows.Next() {
		var drop string
		if err := rows.Scan(&drop); err != nil {
			t.Fatal(err)
		}
		drops = append(drops, drop)
	}
	if err := rows.Err(); err != nil || len(drops) < 12 {
		t.Fatalf("%d indexes, %v", len(drops), err)
	}
	for i, drop := range drops {
		exec(t, db, drop)
		if got := findings.Of(t, db, admin.DefaultExamination()); len(got) != i+1 || !findings.Has(got, admin.MissingIndex, "(") {
			t.Fatalf("%s: %d findings, want %d: %v", drop, len(got), i+1, got)
		}
	}
	exec(t, db, "ALTER TABLE waybill_inbox DROP PRIMARY KEY")
	if got := findings.Of(t, db, admin.DefaultExamination()); !findings.Has(got, admin.MissingIndex, "waybill_inbox (handler, dedup_key)") {
		t.Errorf("without the primary key: %v", got)
	}
}

// The age is right in a session of any time zone, and bytes in the transaction's statement
// disturb nothing. Who may not see transactions gets a note.
func TestOpenTransactionsAreFindings(t *testing.T) {
	t.Parallel()
	server := testserver.StartMariaDB(t, nil)
	dsn := driverDSN(t, server.URL())
	db := open(t, dsn, waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "SET GLOBAL time_zone = '-09:00'")
	away := open(t, dsn, waymysql.Config{})
	tx := begin(t, pool(t, dsn))
	if _, err := tx.Exec("UPDATE waybill_meta SET value = CONCAT(value, '') /* \xff\xfe */"); err != nil {
		t.Fatal(err)
	}
	var id int
	if err := tx.QueryRow("SELECT CONNECTION_ID()").Scan(&id); err != nil {
		t.Fatal(err)
	}
	at := admin.DefaultExamination()
	for _, reader := range []*waymysql.DB{db, away} {
		if got := findings.Of(t, reader, at); len(got) != 0 {
			t.Errorf("a young transaction: %v", got)
		}
	}
	at.OldTransaction = 0
	if got := findings.Of(t, away, at); len(got) != 1 || !findings.Has(got, admin.OldTransaction, fmt.Sprintf("session %d ", id)) {
		t.Errorf("got %v, want session %d", got, id)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "CREATE USER clerk")
	exec(t, db, "GRANT ALL ON *.* TO clerk")
	exec(t, db, "REVOKE PROCESS ON *.* FROM clerk")
	clerk := open(t, strings.Replace(dsn, "root@", "clerk@", 1), waymysql.Config{})
	if got := findings.Of(t, clerk, at); len(got) != 1 || !findings.Has(got, admin.HiddenTransactions, "PROCESS") {
		t.Errorf("without PROCESS: %v", got)
	}
}

func TestServerThatForgetsCommitsIsAFinding(t *testing.T) {
	t.Parallel()
	server := testserver.StartMariaDB(t, map[string]string{"innodb_flush_log_at_trx_commit": "2", "log_bin": "ON", "sync_binlog": "0", "max_connections": "20"})
	db := open(t, driverDSN(t, server.URL()), waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := admin.DefaultExamination()
	at.Now = func() time.Time { return time.Now().Add(5 * time.Second) }
	got := findings.Of(t, db, at)
	if len(got) != 4 || !findings.Has(got, admin.FewConnections, "max_connections is 20, and one process uses up to 32") || !findings.Has(got, admin.NotDurable, "innodb_flush_log_at_trx_commit is 2") || !findings.Has(got, admin.BinlogNotSynced, "sync_binlog is 0") ||
		!findings.Has(got, admin.ClockSkew, "behind this machine's") {
		t.Errorf("got %v", got)
	}
}
