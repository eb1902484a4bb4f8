package waypg_test

import (
	"testing"

	"github.com/waybill-go/waybill/waypg"
)

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
