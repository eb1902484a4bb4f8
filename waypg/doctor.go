package waypg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

var _ admin.Examiner = (*DB)(nil)

// Findings implements admin.Examiner. Sessions of other users count as far as the user may
// see them (pg_read_all_stats).
func (db *DB) Findings(ctx context.Context) ([]admin.Finding, error) {
	return db.examine(ctx, admin.DefaultExamination())
}

func doctorSQL(p *catalog) sqlfile.Set { return p.doctor }

func (db *DB) examine(ctx context.Context, with admin.Examination) ([]admin.Finding, error) {
	scan := func(rows pgx.Rows, f *admin.Finding) error {
		var code, detail string
		err := rows.Scan(&code, &detail)
		*f = finding(admin.Code(code), detail)
		return err
	}
	found, err := query(ctx, db, doctorSQL, "findings", scan, with.OldTransaction.Seconds(), with.IdleTransaction.Seconds(), db.pool.Config().MaxConns)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"changed_tables", "missing_indexes"} {
		more, err := query(ctx, db, doctorSQL, name, scan)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	before := with.Now()
	clock, err := query(ctx, db, doctorSQL, "clock", func(rows pgx.Rows, t *time.Time) error { return rows.Scan(t) })
	if err != nil {
		return nil, err
	}
	return append(found, admin.Skew(before, clock[0], with.Now())...), nil
}

// finding words a finding of the statements.
func finding(code admin.Code, detail string) admin.Finding {
	problem, remedy := detail, ""
	switch code {
	case admin.NotDurable:
		problem = detail + ": a crash of the server's machine can lose or damage committed messages"
		remedy = "set it to on in postgresql.conf, and reload"
	case admin.MissingIndex:
		problem = "an index is missing or invalid: " + detail
		remedy = "create it as `schema print` has it"
	case admin.FewConnections:
		problem = detail + ": handlers wait for a connection, and leases that cannot be renewed meanwhile are lost"
		remedy = "raise max_connections, or lower the concurrency of workers"
	case admin.UnloggedTable:
		problem = detail + ": a crash of the server empties it, and replicas do not have it"
		remedy = "ALTER TABLE ... SET LOGGED"
	case admin.SequenceCache:
		problem = detail + ": messages of a key may be published or handled in another order than they were committed"
		remedy = "ALTER SEQUENCE ... CACHE 1, and have the applications connect again"
	case admin.AutovacuumOff:
		problem = detail + ": dead rows slow relays and workers down more and more"
		remedy = "turn autovacuum on, and set the storage parameters of the table as `schema print` has them"
	case admin.OldTransaction:
		problem = detail + ": vacuum keeps all rows deleted since, and claims read past them"
		remedy = "end it (pg_terminate_backend, ROLLBACK PREPARED), and keep transactions short"
	case admin.InactiveSlot:
		problem = detail + ": the server keeps its log since, until the disk is full, and vacuum may keep deleted rows"
		remedy = "start its reader, or pg_drop_replication_slot"
	case admin.IdleTransaction:
		problem = detail + ": keys that it has dispatched wait for it"
		remedy = "commit or roll back in the application, and set idle_in_transaction_session_timeout"
	}
	return admin.NewFinding(code, problem, remedy)
}
