package waymysql_test

import (
	"context"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// InnoDB shows a commit before its log has it. A relay that published the row
// then would have sent a message that a killed server forgets, and would miss the
// next row with the same id.
func TestRowsThatAKilledServerForgetsAreNotClaimed(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{
		"without a binary log":                           {"skip_log_bin": "ON"},
		"with a binary log that leaves the database out": {"log_bin": "binlog", "binlog_ignore_db": "waybill"},
	} {
		t.Run(name, func(t *testing.T) {
			// The statistics would be written while the log is held, under a lock that all need.
			settings["innodb_stats_auto_recalc"] = "OFF"
			forgottenRowIsNotClaimed(t, testserver.StartHoldingMariaDB(t, settings))
		})
	}
}

func forgottenRowIsNotClaimed(t *testing.T, server *testserver.HoldingServer) {
	t.Helper()
	db := open(t, driverDSN(t, server.URL()), waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, db, order{"k", 1}) // tables first opened while the log is held would wait for it
	claimed(t, db)

	server.Hold()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	go func() { _ = send(newOutbox(t, db, outbox.Config{}), order{"k", 2}) }()
	for count(t, db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0") == 0 {
		if ctx.Err() != nil {
			t.Fatal("the commit does not show while the log is held: this proves nothing")
		}
		time.Sleep(time.Millisecond)
	}
	var rows []outbox.ClaimedRow
	claiming, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	if c, err := db.Claim(claiming, "default", outbox.Keyed, manyRows); err == nil {
		rows = c.Rows()
	}
	server.Kill()
	server.Start()
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); n != 0 {
		t.Fatalf("%d rows survived: this proves nothing", n)
	}
	if len(rows) > 0 {
		t.Errorf("%+v was claimed, and is forgotten", bodyOf(rows[0].Record))
	}
	put(t, db, order{"k", 3})
	if got := claimed(t, db); len(got) != 1 || got[0] != (order{"k", 3}) {
		t.Errorf("claimed after the restart: %v", got)
	}
}

// claimed claims and settles all there is.
func claimed(t *testing.T, db *waymysql.DB) (all []order) {
	t.Helper()
	c, err := db.Claim(t.Context(), "default", outbox.Keyed, manyRows)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range c.Rows() {
		all = append(all, bodyOf(row.Record))
	}
	if err := c.Settle(t.Context(), c.Rows(), nil); err != nil {
		t.Fatal(err)
	}
	return all
}
