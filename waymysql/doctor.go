package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"

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
	if denied(err) {
		old, err = []admin.Finding{finding(admin.HiddenTransactions, "")}, nil
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

// denied reports whether err is that of a missing global privilege.
func denied(err error) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && server.Number == 1227
}

func scanFinding(rows *sql.Rows, f *admin.Finding) error {
	var code, detail string
	err := rows.Scan(&code, &detail)
	*f = finding(admin.Code(code), detail)
	return err
}

// finding words a finding of the statements.
func finding(code admin.Code, detail string) admin.Finding {
	problem, remedy := detail, ""
	switch code {
	case admin.NotDurable:
		problem = detail + ": a crash of the server's machine loses the last commits, whose messages may have been sent"
		remedy = "set innodb_flush_log_at_trx_commit to 1"
	case admin.BinlogNotSynced:
		problem = detail + ": after a crash of the server's machine replicas may have other commits than the server"
		remedy = "set sync_binlog to 1"
	case admin.FewConnections:
		problem = detail + ": handlers wait for a connection, and leases that cannot be renewed meanwhile are lost"
		remedy = "raise max_connections, or lower the concurrency of workers"
	case admin.MissingIndex:
		problem = "an index is missing: " + detail
		remedy = "create it as `schema print` has it"
	case admin.OldTransaction:
		problem = detail + ": the server keeps all rows deleted since, and claims read past them"
		remedy = "end it (KILL), and keep transactions short"
	case admin.HiddenTransactions:
		problem = "open transactions cannot be seen without the privilege PROCESS"
		remedy = "GRANT PROCESS ON *.* to the user that doctor connects as"
	}
	return admin.NewFinding(code, problem, remedy)
}
