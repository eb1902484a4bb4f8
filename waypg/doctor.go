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
	if code == admin.MissingIndex {
		return admin.NewFinding(code, "an index is missing or invalid: "+detail, "create it as `schema print` has it")
	}
	of := words[code]
	return admin.NewFinding(code, detail+": "+of.effect, of.remedy)
}

var words = map[admin.Code]struct{ effect, remedy string }{
	admin.NotDurable:      {"a crash of the server's machine can lose or damage committed messages", "set it to on in postgresql.conf, and reload"},
	admin.FewConnections:  {"handlers wait for a connection, and leases that cannot be renewed meanwhile are lost", "raise max_connections, or lower the concurrency of workers"},
	admin.UnloggedTable:   {"a crash of the server empties it, and replicas do not have it", "ALTER TABLE ... SET LOGGED"},
	admin.SequenceCache:   {"messages of a key may be published or handled in another order than they were committed", "ALTER SEQUENCE ... CACHE 1, and have the applications connect again"},
	admin.AutovacuumOff:   {"dead rows slow relays and workers down more and more", "turn autovacuum on, and set the storage parameters of the table as `schema print` has them"},
	admin.OldTransaction:  {"vacuum keeps all rows deleted since, and claims read past them", "end it (pg_terminate_backend, ROLLBACK PREPARED), and keep transactions short"},
	admin.InactiveSlot:    {"the server keeps its log since, until the disk is full, and vacuum may keep deleted rows", "start its reader, or pg_drop_replication_slot"},
	admin.IdleTransaction: {"keys that it has dispatched wait for it", "commit or roll back in the application, and set idle_in_transaction_session_timeout"},
}
