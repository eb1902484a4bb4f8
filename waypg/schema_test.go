package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	osexec "os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

func TestSchemaUpMayBeRepeated(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := connect(t, at(t), waypg.Config{Prefix: "msg_"})
		first, err := db.SchemaUp(t.Context())
		if err != nil || len(first.Applied) == 0 || first.Version != first.Wanted {
			t.Fatalf("SchemaUp = %+v, %v", first, err)
		}
		second, err := db.SchemaUp(t.Context())
		if err != nil || len(second.Applied) != 0 || len(second.Pending) != 0 || second.Version != first.Version {
			t.Errorf("SchemaUp again = %+v, %v", second, err)
		}
		if n := count(t, db, "SELECT count(*) FROM pg_class WHERE relname LIKE 'waybill%'"); n != 0 {
			t.Errorf("%d objects ignore the prefix", n)
		}
		put(t, db, outbox.Config{}, order{"k", 0})
		if n := count(t, db, "SELECT count(*) FROM msg_outbox"); n != 1 {
			t.Errorf("%d rows in msg_outbox", n)
		}
	})
}

func TestSchemaUpMayRunSeveralTimesAtOnce(t *testing.T) {
	for _, level := range []string{"read committed", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			dsn := testserver.Postgres(t)
			if level != "read committed" {
				dsn += "&default_transaction_isolation=" + url.QueryEscape(level)
			}
			var all sync.WaitGroup
			applied := make([]int, 6)
			for i := range applied {
				db := connect(t, dsn, waypg.Config{Schema: "app"})
				all.Go(func() {
					status, err := db.SchemaUp(context.Background())
					if err != nil {
						t.Error(err)
					}
					applied[i] = len(status.Applied)
				})
			}
			all.Wait()
			sum := 0
			for _, n := range applied {
				sum += n
			}
			if sum != 1 {
				t.Errorf("applied %v, want the migration once", applied)
			}
		})
	}
}

func TestSetsOfTablesDoNotDisturbEachOther(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		dsn := at(t)
		sets := []waypg.Config{{}, {Prefix: "other_"}, {Schema: "My-App"}, {Schema: "My-App", Prefix: "other_"}, {Schema: "a_b"}, {Schema: "SELECT", Prefix: "user_"}}
		for i, cfg := range sets {
			db := openAt(t, dsn, cfg)
			put(t, db, outbox.Config{}, order{"k", i})
		}
		for i, cfg := range sets {
			db := connect(t, dsn, cfg)
			sink := &recorder{}
			drain(t, db, sink, outbox.RelayConfig{})
			if len(sink.got) != 1 || sink.got[0].Seq != i {
				t.Errorf("%+v: %v came, want its own message", cfg, sink.got)
			}
		}
	})
}

func TestWrongNamesAreRefused(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	for _, cfg := range []waypg.Config{{Schema: `a"b`}, {Schema: "a b"}, {Schema: "a$$b"}, {Schema: strings.Repeat("x", 64)}, {Schema: "a'b"}, {Prefix: "A"}, {Prefix: "a;"}, {IdleTimeout: -1}, {Retention: -1}} {
		if db, err := waypg.Open(t.Context(), dsn, cfg); err == nil {
			t.Errorf("Open(%+v) = nil error", cfg)
			db.Close()
		}
	}
	if _, err := waypg.SchemaSQL("a b", ""); err == nil {
		t.Error("SchemaSQL of a wrong schema = nil error")
	}
	db := connect(t, dsn, waypg.Config{})
	if _, err := db.Queue("", waypg.QueueConfig{}); err == nil {
		t.Error("a queue without a name = nil error")
	}
	if _, err := db.Queue("q", waypg.QueueConfig{Lease: time.Millisecond}); err == nil {
		t.Error("a lease of 1 ms = nil error")
	}
}

func TestPrintedSchemaIsTheSchema(t *testing.T) {
	t.Parallel()
	for _, cfg := range []waypg.Config{{}, {Schema: "My-App", Prefix: "msg_"}} {
		up := open(t, testserver.Postgres, cfg)
		text, err := up.SchemaSQL()
		if err != nil {
			t.Fatal(err)
		}
		dsn := testserver.Postgres(t)
		if cfg.Schema != "" {
			text = `CREATE SCHEMA "` + cfg.Schema + `"; ` + text
		}
		psql := osexec.Command("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", dsn)
		psql.Stdin = strings.NewReader(text)
		if out, err := psql.CombinedOutput(); err != nil {
			t.Fatalf("psql: %v\n%s", err, out)
		}
		printed := connect(t, dsn, cfg)
		if status, err := printed.SchemaStatus(t.Context()); err != nil || status.Err() != nil {
			t.Errorf("status after the printed statements: %+v, %v", status, err)
		}
		const objects = `SELECT string_agg(o, ' ' ORDER BY o) FROM (
			SELECT n.nspname || '.' || c.relname || coalesce((SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ',' ORDER BY a.attnum) FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0), '')
			FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname NOT LIKE 'pg_%' AND n.nspname <> 'information_schema'
			UNION ALL SELECT p.proname || md5(p.prosrc) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname NOT LIKE 'pg_%' AND n.nspname <> 'information_schema') AS all_objects (o)`
		var a, b string
		if err := errors.Join(up.Pool().QueryRow(t.Context(), objects).Scan(&a), printed.Pool().QueryRow(t.Context(), objects).Scan(&b)); err != nil || a != b || a == "" {
			t.Errorf("objects by up:\n%s\nby print:\n%s (%v)", a, b, err)
		}
		put(t, printed, outbox.Config{}, order{"k", 0})
	}
}

func TestSchemaThatDoesNotFitIsRefusedByName(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		dsn := at(t)
		use := func() error {
			_, err := outbox.New(connect(t, dsn, waypg.Config{}), outbox.Config{})
			return err
		}
		if err := use(); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "schema up") {
			t.Errorf("without tables: %v", err)
		}
		db := openAt(t, dsn, waypg.Config{})
		for version, ok := range map[string]bool{"1": true, "2": true, "3": false} {
			exec(t, db, "UPDATE waybill_meta SET value = '"+version+"' WHERE name = 'schema_version'")
			if err := use(); (err == nil) != ok || err != nil && !errors.Is(err, admin.ErrSchema) {
				t.Errorf("with version %s: %v", version, err)
			}
		}
		exec(t, db, "UPDATE waybill_meta SET value = '1' WHERE name = 'schema_version'; UPDATE waybill_meta SET value = '128' WHERE name = 'buckets'")
		if err := use(); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "128 buckets") {
			t.Errorf("with other buckets: %v", err)
		}
		exec(t, db, "DELETE FROM waybill_meta WHERE name = 'buckets'")
		if err := use(); !errors.Is(err, admin.ErrSchema) {
			t.Errorf("without a bucket count: %v, want ErrSchema", err)
		}
	})
}

// asRole makes a role, completes a statement with its name to give it something, and returns the
// DSN by which it logs in.
func asRole(t *testing.T, owner *waypg.DB, dsn, grant string) string {
	t.Helper()
	role := fmt.Sprintf("r%d", time.Now().UnixNano())
	exec(t, owner, "CREATE ROLE "+role+" LOGIN; "+grant+role)
	t.Cleanup(func() {
		_, _ = owner.Pool().Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role, pgx.QueryExecModeSimpleProtocol)
	})
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// A role that may not create schemas may use the one that is there.
func TestSchemaUpNeedsNoRightThatItDoesNotUse(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	owner := connect(t, dsn, waypg.Config{})
	db := openAt(t, asRole(t, owner, dsn, "CREATE SCHEMA app AUTHORIZATION "), waypg.Config{Schema: "app"})
	put(t, db, outbox.Config{}, order{"k", 0})
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	if len(sink.got) != 1 {
		t.Errorf("%v came, want one message", sink.got)
	}
}

// A role without a policy sees tables without rows: its relay would drain nothing, and say that all is well.
func TestRowLevelSecurityWithoutAPolicyIsRefused(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	owner := openAt(t, dsn, waypg.Config{Prefix: "shop_"})
	other := asRole(t, owner, dsn, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO ")
	start := func() error {
		_, err := connect(t, other, waypg.Config{Prefix: "shop_"}).SchemaStatus(t.Context())
		return err
	}
	exec(t, owner, "ALTER TABLE shop_outbox ENABLE ROW LEVEL SECURITY")
	if err := start(); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "row level security hides all rows of public.shop_outbox") {
		t.Errorf("with row level security and no policy: %v", err)
	}
	exec(t, owner, "CREATE POLICY every ON shop_outbox USING (true)")
	if err := start(); err != nil {
		t.Errorf("with a policy: %v", err)
	}
}

// A schema up on tables that are up to date blocks no relay, and waits for none.
func TestSchemaUpUnderLoadTakesNoLongLock(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		put(t, db, outbox.Config{}, order{"k", 0})
		publishing := claim(t, db, "default", manyRows)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := db.SchemaUp(ctx); err != nil {
			t.Errorf("SchemaUp beside a publish = %v", err)
		}
		settle(t, publishing, nil)
	})
}

func TestPoolWithNamedStatementsBehindAPoolerIsRefused(t *testing.T) {
	t.Parallel()
	dsn := pooled(t)
	for mode, ok := range map[pgx.QueryExecMode]bool{
		pgx.QueryExecModeCacheStatement: false, pgx.QueryExecModeDescribeExec: false, pgx.QueryExecModeCacheDescribe: true, pgx.QueryExecModeExec: true,
	} {
		cfg, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.DefaultQueryExecMode = mode
		db := over(t, cfg, waypg.Config{})
		_, err = db.SchemaUp(t.Context())
		if (err == nil) != ok || !ok && !strings.Contains(err.Error(), "QueryExecModeExec") {
			t.Errorf("%v: SchemaUp = %v", mode, err)
		}
		if !ok {
			continue
		}
		// The allowed modes work on sessions that the pooler changes.
		put(t, db, outbox.Config{}, order{"k", 0}, order{"k", 1})
		sink := &recorder{}
		drain(t, db, sink, outbox.RelayConfig{})
		if perKey(t, sink.got)["k"] != 2 {
			t.Errorf("%v: %v came", mode, sink.got)
		}
	}
}

// A pooler in statement mode refuses transactions: each process says so at its start.
func TestPoolerInStatementModeIsRefused(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	openAt(t, dsn, waypg.Config{}) // with the tables
	cfg, err := pgxpool.ParseConfig(testserver.StartPgBouncer(t, dsn, "statement"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	for name, start := range map[string]func(*waypg.DB) error{
		"SchemaStatus": func(db *waypg.DB) error { _, err := db.SchemaStatus(ctx); return err },
		"outbox.New":   func(db *waypg.DB) error { _, err := outbox.New(db, outbox.Config{}); return err },
		"Receive": func(db *waypg.DB) error {
			q, err := db.Queue("q", waypg.QueueConfig{})
			if err == nil {
				_, err = q.Receive(ctx, 1)
			}
			return err
		},
		"relay": func(db *waypg.DB) error {
			relay, err := outbox.NewRelay(db, &recorder{}, outbox.RelayConfig{Drain: true})
			if err == nil {
				err = relay.Run(ctx)
			}
			return err
		},
	} {
		if err := start(over(t, cfg.Copy(), waypg.Config{})); err == nil || errors.Is(err, waybill.ErrUnavailable) || strings.Count(err.Error(), "set pool_mode of PgBouncer to transaction") != 1 {
			t.Errorf("%s = %v", name, err)
		}
	}
}

// Every mode of pgx works on a server.
func TestEveryExecModeWorks(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec} {
		cfg, err := pgxpool.ParseConfig(testserver.Postgres(t))
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.DefaultQueryExecMode = mode
		db := over(t, cfg, waypg.Config{})
		if _, err := db.SchemaUp(t.Context()); err != nil {
			t.Fatalf("%v: %v", mode, err)
		}
		inBoth(t, db, outbox.Config{}, func(t *testing.T, s session) {
			err := s.inTx(t.Context(), func(ctx context.Context, tx unit) error {
				for i := range 3 {
					if _, err := tx.dispatch(ctx, order{"k", i}); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			first := true
			sink := &recorder{refuse: func(*waybill.Record) error {
				defer func() { first = false }()
				if first {
					return errRefused
				}
				return nil
			}}
			drain(t, db, sink, outbox.RelayConfig{Retry: noRetry, Workers: 1})
			if _, err := db.Release(t.Context(), adminAll); err != nil {
				t.Fatal(err)
			}
			drain(t, db, sink, outbox.RelayConfig{Workers: 1})
			if perKey(t, sink.got)["k"] != 3 {
				t.Errorf("%v: %v came", mode, sink.got)
			}
		})
	}
}

func TestTransportInsertedBySQLIsMended(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	for i, mend := range []func() error{
		func() error { _, err := db.SchemaUp(t.Context()); return err },
		func() error { return openAtSame(t, db).AddTransports(t.Context(), "events0", "events1") },
	} {
		exec(t, db, fmt.Sprintf("INSERT INTO waybill_transport (name) VALUES ('events%d')", i))
		if _, err := db.SchemaStatus(t.Context()); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "schema up") {
			t.Errorf("SchemaStatus = %v, want an error that says what to do", err)
		}
		if err := mend(); err != nil {
			t.Error(err)
		}
		if _, err := db.SchemaStatus(t.Context()); err != nil {
			t.Errorf("SchemaStatus afterwards = %v", err)
		}
	}
}

func TestSequenceThatCachesIsRefused(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	exec(t, db, "ALTER SEQUENCE waybill_outbox_id_seq CACHE 50")
	if _, err := db.SchemaStatus(t.Context()); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "CACHE 50") {
		t.Errorf("SchemaStatus = %v", err)
	}
	if _, err := db.StartRelay(t.Context()); !errors.Is(err, admin.ErrSchema) {
		t.Errorf("Lead = %v", err)
	}
}
