package waypg_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waypg"
)

// A join with the rows would begin a scan for each.
func TestSettleDeletesItsRowsInOneScan(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	for _, statement := range []string{"delete_outbox", "delete_unkeyed"} {
		plan, err := db.PlanOf(t.Context(), statement, []pgtype.TID{}, []int64{})
		if err != nil || !strings.Contains(plan, "Tid Scan") || strings.Contains(plan, "Nested Loop") {
			t.Errorf("%s, %v:\n%s", statement, err, plan)
		}
	}
}

// rowsRead counts the rows of the outbox that the server reads during do.
func rowsRead(t testing.TB, db *waypg.DB, do func()) int {
	t.Helper()
	return readDuring(t, db, "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'waybill_outbox'::regclass", do)
}

// entriesRead counts the index entries of a table that the server reads during do.
func entriesRead(t testing.TB, db *waypg.DB, table string, do func()) int {
	t.Helper()
	return readDuring(t, db, "SELECT (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE relid = '"+table+"'::regclass) + seq_tup_read FROM pg_stat_user_tables WHERE relid = '"+table+"'::regclass", do)
}

// readDuring returns the growth of a statistic during do.
func readDuring(t testing.TB, db *waypg.DB, statistic string, do func()) int {
	t.Helper()
	read := func() int {
		for _, conn := range db.Pool().AcquireAllIdle(t.Context()) {
			_, err := conn.Exec(t.Context(), "SELECT pg_stat_force_next_flush()")
			conn.Release()
			if err != nil {
				t.Fatal(err)
			}
		}
		return count(t, db, statistic)
	}
	before := read()
	do()
	return read() - before
}
