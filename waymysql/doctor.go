package waymysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
)

var _ admin.Examiner = (*DB)(nil)

// Findings implements admin.Examiner. Old transactions are found with the privilege PROCESS
// only; without it a note says so.
func (db *DB) Findings(ctx context.Context) ([]admin.Finding, error) {
	return db.examine(ctx, admin.DefaultExamination())
}

func (db *DB) examine(ctx context.Context, with admin.Examination) ([]admin.Finding, error) {
	found, err := query(ctx, db, db.doctor.Query("findings"), scanFinding, db.MaxConns(), db.MaxConns())
	if err != nil {
		return nil, err
	}
	missing, err := query(ctx, db, db.doctor.Query("missing_indexes"), scanFinding, db.prefix, db.schema, db.prefix)
	if err != nil {
		return nil, err
	}
	old, err := query(ctx, db, db.doctor.Query("old_transactions"), scanFinding, int(with.OldTransaction.Seconds()))
	if is(err, errNoPrivilege) {
		hidden := admin.NewFinding(admin.HiddenTransactions, "open transactions cannot be seen without the privilege PROCESS", "GRANT PROCESS ON *.* to the user that doctor connects as")
		old, err = []admin.Finding{hidden}, nil
	}
	if err != nil {
		return nil, err
	}
	before := with.Now()
	clock, err := query(ctx, db, db.doctor.Query("clock"), func(rows *sql.Rows, t *time.Time) error { return rows.Scan(moment{t}) })
	if err != nil {
		return nil, err
	}
	found = append(append(found, missing...), old...)
	return append(found, admin.Skew(before, clock[0], with.Now())...), nil
}

func scanFinding(rows *sql.Rows, f *admin.Finding) error {
	var code, detail string
	err := rows.Scan(&code, &detail)
	*f = finding(admin.Code(code), detail)
	return err
}

// finding words a finding of the statements.
func finding(code admin.Code, detail string) admin.Finding {
	if code == admin.MissingIndex {
		return admin.NewFinding(code, "an index is missing: "+detail, "create it as `schema print` has it")
	}
	of := words[code]
	return admin.NewFinding(code, detail+": "+of.effect, of.remedy)
}

var words = map[admin.Code]struct{ effect, remedy string }{
	admin.NotDurable:      {"a crash of the server's machine loses the last commits, whose messages may have been sent", "set innodb_flush_log_at_trx_commit to 1"},
	admin.BinlogNotSynced: {"after a crash of the server's machine replicas may have other commits than the server", "set sync_binlog to 1"},
	admin.FewConnections:  {"handlers wait for a connection, and leases that cannot be renewed meanwhile are lost", "raise max_connections, or lower the concurrency of workers"},
	admin.OldTransaction:  {"the server keeps all rows deleted since, and claims read past them", "end it (KILL), and keep transactions short"},
}
