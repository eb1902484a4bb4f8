package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/waytest"
)

var postgresKind = kind{
	name:  "postgres",
	fresh: testserver.Postgres,
	// It may lose acknowledged transactions.
	start: func(tb testing.TB) *testserver.Server {
		return testserver.StartPostgres(tb, map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"})
	},
	open:    openPostgreSQL,
	id:      func(id waybill.MessageID) any { return id.String() },
	text:    func(address string) string { return option(address, "default_query_exec_mode", "exec") },
	again:   func(err error) bool { return errors.Is(err, outbox.ErrBucketsChanged) },
	locks:   "FOR    UPDATE OF b SKIP LOCKED",
	reads:   "OVER (ORDER BY k.n",
	deletes: "DELETE FROM",
	commits: "DELETE FROM", // both go out at once
	now:     "SELECT now()::text",
	began:   "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND xact_start <= ?::timestamptz",
	says:    "concat_ws(' ', pid, state, wait_event, xact_start, state_change, query)",
	grace:   6 * time.Second,
	client:  psql,
}

// postgreSQL is a database, with transactions of pgx.
type postgreSQL struct{ *waypg.DB }

func openPostgreSQL(ctx context.Context, address string, how opening) (database, error) {
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = max(cfg.MaxConns, 10) // as Open has it
	if how.dial != nil {
		cfg.ConnConfig.DialFunc = how.dial
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	db, err := waypg.New(pool, waypg.Config{IdleTimeout: how.idle})
	return postgreSQL{db}, err
}

func (db postgreSQL) Close() error {
	defer db.Pool().Close()
	return db.DB.Close()
}

func (db postgreSQL) look(statement string) (*sql.DB, string) {
	return db.SQL().Pool(), numbered(statement)
}

func (db postgreSQL) application(cfg outbox.Config) (application, error) {
	out, err := outbox.New(db.DB, cfg)
	if err != nil {
		return nil, err
	}
	return &app[pgx.Tx]{
		out:   out,
		begin: func(ctx context.Context, fn func(tx pgx.Tx) error) error { return pgx.BeginFunc(ctx, db.Pool(), fn) },
		exec: func(ctx context.Context, tx pgx.Tx, statement string, args ...any) error {
			_, err := tx.Exec(ctx, numbered(statement), args...)
			return err
		},
		next: func(ctx context.Context, tx pgx.Tx, keys []string, each int) (map[string]int, error) {
			rows, err := tx.Query(ctx, `INSERT INTO counts SELECT k, $2 FROM unnest($1::text[]) AS k ORDER BY k
				ON CONFLICT (k) DO UPDATE SET n = counts.n + excluded.n RETURNING k, n`, keys, each)
			if err != nil {
				return nil, err
			}
			last := map[string]int{}
			var key string
			var n int
			_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error { last[key] = n; return nil })
			return last, err
		},
	}, nil
}

func (db postgreSQL) handle(bus *waybill.Bus, after func()) {
	inbox.Handle(bus, db.DB, "count", func(ctx context.Context, tx pgx.Tx, m counted) error {
		id, _ := waybill.Last[waybill.MessageID](waybill.EnvelopeFrom(ctx))
		_, err := tx.Exec(ctx, "INSERT INTO effects (k, n, message_id) VALUES ($1, $2, $3)", m.Key, m.N, id.String())
		after()
		return err
	})
}

func (db postgreSQL) leased(name string, lease time.Duration) (waytest.Transport, error) {
	return db.Queue(name, waypg.QueueConfig{Lease: lease})
}

const (
	psqlOne = `WITH c AS (INSERT INTO counts VALUES ('%s', 1) ON CONFLICT (k) DO UPDATE SET n = counts.n + 1 RETURNING k, n)
INSERT INTO sent (k, n, name, message_id) SELECT k, n, 'key.counted',
waybill_dispatch('key.counted', k, '{}', convert_to(json_build_object('Key', k, 'N', n)::text, 'UTF8')) FROM c;
`
	psqlAll = `WITH c AS (INSERT INTO counts SELECT k, 1 FROM unnest('{%s}'::text[]) AS k ORDER BY k ON CONFLICT (k) DO UPDATE SET n = counts.n + 1 RETURNING k, n),
d AS (SELECT array_agg(k ORDER BY k) AS keys, array_agg(n ORDER BY k) AS ns, array_agg('key.counted'::text) AS names, array_agg('{}'::jsonb) AS headers,
             array_agg(convert_to(json_build_object('Key', k, 'N', n)::text, 'UTF8') ORDER BY k) AS bodies FROM c)
INSERT INTO sent (k, n, name, message_id) SELECT u.k, u.n, 'key.counted', u.id
FROM d, unnest(d.keys, d.ns, waybill_dispatch_all(d.names, d.keys, d.headers, d.bodies)) AS u (k, n, id);
`
)

func psql(s *stack, keys []string, rounds int) error {
	var script strings.Builder
	for range rounds {
		for _, key := range keys {
			fmt.Fprintf(&script, psqlOne, key)
		}
		fmt.Fprintf(&script, psqlAll, strings.Join(keys, ","))
	}
	cmd := exec.Command("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", s.database)
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("psql: %w\n%s", err, out)
	}
	return nil
}
