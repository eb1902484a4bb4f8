package waymysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// objects returns all that a database has of a prefix, without the prefix and
// the database's name: tables and procedures as the server would create them, and
// the rows that are there from the beginning.
func objects(t testing.TB, p *sql.DB, schema, prefix string) (all []string) {
	t.Helper()
	ask := func(query string, scan func(rows *sql.Rows)) {
		t.Helper()
		rows, err := p.QueryContext(context.Background(), query)
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		defer rows.Close()
		for rows.Next() {
			scan(rows)
		}
		if err := rows.Err(); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	plain := func(text string) string {
		text = strings.ReplaceAll(strings.ReplaceAll(text, "`"+schema+"`.", ""), prefix, "")
		text = regexp.MustCompile(` AUTO_INCREMENT=\d+`).ReplaceAllString(text, "")
		// The server's client leaves comments out.
		return regexp.MustCompile(`\s+`).ReplaceAllString(regexp.MustCompile(`--[^\n]*\n`).ReplaceAllString(text, ""), " ")
	}
	var names []string
	ask("SELECT table_name FROM information_schema.tables WHERE table_schema = '"+schema+"' AND table_name LIKE '"+strings.ReplaceAll(prefix, "_", `\_`)+"%' ORDER BY table_name", func(rows *sql.Rows) {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	})
	for _, name := range names {
		ask("SHOW CREATE TABLE `"+schema+"`."+name, func(rows *sql.Rows) {
			var name, text string
			if err := rows.Scan(&name, &text); err != nil {
				t.Fatal(err)
			}
			all = append(all, plain(text))
		})
	}
	for query, what := range map[string]string{
		"SELECT CONCAT(routine_name, ' ', routine_definition, ' ', security_type, ' ', sql_data_access) FROM information_schema.routines WHERE routine_schema = '" + schema + "' AND routine_name LIKE '" + strings.ReplaceAll(prefix, "_", `\_`) + "%' ORDER BY 1": "procedure ",
		"SELECT CONCAT(name, ' = ', value) FROM `" + schema + "`." + prefix + "meta WHERE name <> 'schema_step' ORDER BY 1":                                                                                                                                         "meta ",
		"SELECT CONCAT(transport, ': ', COUNT(*)) FROM `" + schema + "`." + prefix + "outbox_gate GROUP BY transport ORDER BY transport":                                                                                                                            "gates of ",
	} {
		ask(query, func(rows *sql.Rows) {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Fatal(err)
			}
			all = append(all, what+plain(text))
		})
	}
	slices.Sort(all)
	return all
}

func databaseOf(t testing.TB, dsn string) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.DBName
}

func TestSchemaUpMayBeRepeated(t *testing.T) {
	t.Parallel()
	dsn := driverDSN(t, testserver.MariaDB(t))
	db := open(t, dsn, waymysql.Config{Prefix: "msg_"})
	first, err := db.SchemaUp(t.Context())
	if err != nil || len(first.Applied) == 0 || first.Version != first.Wanted || len(first.Pending) != 0 {
		t.Fatalf("SchemaUp = %+v, %v", first, err)
	}
	put(t, db, order{"k", 0})
	before := objects(t, db.Pool(), databaseOf(t, dsn), "msg_")
	second, err := db.SchemaUp(t.Context())
	if err != nil || len(second.Applied) != 0 || len(second.Pending) != 0 || second.Version != first.Version {
		t.Errorf("SchemaUp again = %+v, %v", second, err)
	}
	if diff := cmp.Diff(before, objects(t, db.Pool(), databaseOf(t, dsn), "msg_")); diff != "" {
		t.Errorf("the second has changed (-before +after):\n%s", diff)
	}
	if n := count(t, db, `SELECT (SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 'waybill%')
		+ (SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = DATABASE() AND routine_name LIKE 'waybill%')`); n != 0 {
		t.Errorf("%d objects ignore the prefix", n)
	}
	if n := count(t, db, "SELECT COUNT(*) FROM msg_outbox WHERE id > 0"); n != 1 {
		t.Errorf("%d rows in msg_outbox", n)
	}
}

func TestSchemaUpMayRunSeveralTimesAtOnce(t *testing.T) {
	t.Parallel()
	dsn := driverDSN(t, testserver.MariaDB(t))
	var all sync.WaitGroup
	var applied atomic.Int64
	for range 6 {
		db := open(t, dsn, waymysql.Config{})
		all.Go(func() {
			status, err := db.SchemaUp(context.Background())
			if err != nil || status.Version != status.Wanted {
				t.Errorf("SchemaUp = %+v, %v", status, err)
			}
			applied.Add(int64(len(status.Applied)))
		})
	}
	all.Wait()
	status, err := open(t, dsn, waymysql.Config{}).SchemaStatus(t.Context())
	if err != nil || int(applied.Load()) != status.Wanted {
		t.Errorf("%d migrations were applied (%v), want each of %d once", applied.Load(), err, status.Wanted)
	}
}

// MySQL has no transactions of DDL. Wherever a schema up is cut, before a
// statement arrives or before its answer does, the next one continues. Each run
// of the test tries every third place, from a random first one.
func TestSchemaUpGoesOnWhereItWasCut(t *testing.T) {
	t.Parallel()
	dsn := driverDSN(t, testserver.MariaDB(t))
	schema := databaseOf(t, dsn)
	whole := open(t, dsn, waymysql.Config{Prefix: "whole_"})
	if _, err := whole.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := objects(t, whole.Pool(), schema, "whole_")

	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	var next atomic.Int64
	first := rand.Int64N(3)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			network, err := faultproxy.Start(cfg.Addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer network.Close()
			through := cfg.Clone()
			through.Addr = network.Addr()
			for !done.Load() {
				at := 3*(next.Add(1)-1) + first
				statement, lost := at/2, at%2 == 1
				prefix := fmt.Sprintf("cut%d_", at)
				cut := open(t, through.FormatDSN(), waymysql.Config{Prefix: prefix})
				var seen atomic.Int64 // statements that change something
				var cutting atomic.Bool
				network.OnBytes(func(dir faultproxy.Direction, b []byte) faultproxy.Action {
					changes := len(b) > 5 && b[4] == 3 && regexp.MustCompile(`^\s*(/\*.*?\*/\s*)?(CREATE|ALTER|INSERT|REPLACE|DELETE|DROP)`).Match(b[5:])
					switch {
					case cutting.Load():
						return faultproxy.CutBefore
					case dir == faultproxy.ToServer && changes && seen.Add(1) > statement:
						cutting.Store(true)
						if !lost {
							return faultproxy.CutBefore
						}
					}
					return faultproxy.Pass
				})
				_, err := cut.SchemaUp(context.Background())
				network.OnBytes(nil)
				if err == nil {
					done.Store(true) // there are no more statements
				} else if !cutting.Load() {
					t.Errorf("cut %d: %v without a cut", at, err)
				}
				up := open(t, dsn, waymysql.Config{Prefix: prefix})
				if status, err := up.SchemaUp(context.Background()); err != nil || status.Err() != nil {
					t.Errorf("cut at statement %d, answer lost %v: SchemaUp = %+v, %v", statement+1, lost, status, err)
					return
				}
				if diff := cmp.Diff(want, objects(t, up.Pool(), schema, prefix)); diff != "" {
					t.Errorf("cut at statement %d, answer lost %v (-want +got):\n%s", statement+1, lost, diff)
				}
				if at%7 == 0 {
					put(t, up, order{"k", 0})
					exec(t, up, "CALL "+prefix+"dispatch_all(NULL, '[{\"name\": \"order.placed\", \"key\": \"k\", \"headers\": {}, \"body\": \"\"}]')")
					if got := drained(t, up); len(got) != 2 {
						t.Errorf("cut %d: %v came, want two messages", at, got)
					}
				}
				_, _ = up.Close(), cut.Close()
			}
		})
	}
	all.Wait()
	t.Logf("%d positions", next.Load())
	if 3*next.Load() < 60 {
		t.Errorf("%d positions were tried, want more than there are tables", next.Load())
	}
}

func TestSetsOfTablesDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	dsn, elsewhere := driverDSN(t, testserver.MariaDB(t)), databaseOf(t, driverDSN(t, testserver.MariaDB(t)))
	odd := elsewhere[:20] + "-X"
	sets := []waymysql.Config{{}, {Prefix: "other_"}, {Prefix: "waybill_2_"}, {Schema: elsewhere}, {Schema: elsewhere, Prefix: "other_"}, {Schema: odd, Prefix: "user_"}}
	admin := open(t, dsn, waymysql.Config{})
	exec(t, admin, "CREATE DATABASE `"+odd+"`")
	t.Cleanup(func() { exec(t, admin, "DROP DATABASE `"+odd+"`") })
	for i, cfg := range sets {
		db := open(t, dsn, cfg)
		if _, err := db.SchemaUp(t.Context()); err != nil {
			t.Fatalf("%+v: %v", cfg, err)
		}
		put(t, db, order{"k", 2 * i})
		name := "dispatch"
		if cfg.Prefix == "" {
			cfg.Prefix = "waybill_"
		}
		if cfg.Schema != "" {
			name = "`" + cfg.Schema + "`." + cfg.Prefix + name
		} else {
			name = cfg.Prefix + name
		}
		exec(t, db, fmt.Sprintf(`CALL %s('order.placed', 'k', '{}', '{"key":"k","seq":%d}')`, name, 2*i+1))
	}
	for i, cfg := range sets {
		// With Schema also over a connection without a database.
		c, err := mysql.ParseDSN(dsn)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Schema != "" {
			c.DBName = ""
		}
		db, err := waymysql.OpenConfig(c, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]order{{"k", 2 * i}, {"k", 2*i + 1}}, drained(t, db)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", cfg, diff)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWrongNamesAreRefused(t *testing.T) {
	t.Parallel()
	dsn := driverDSN(t, testserver.MariaDB(t))
	for _, cfg := range []waymysql.Config{{Schema: "a`b"}, {Schema: "a b"}, {Schema: "a.b"}, {Schema: "-a"}, {Schema: strings.Repeat("x", 65)}, {Schema: "a'b"}, {Prefix: "A"}, {Prefix: "a;"},
		{IdleTimeout: -time.Second}, {IdleTimeout: 1500 * time.Millisecond}, {Retention: -1}, {MaxConns: -1}} {
		if db, err := waymysql.Open(t.Context(), dsn, cfg); err == nil {
			t.Errorf("Open(%+v) = nil error", cfg)
			_ = db.Close()
		}
	}
	if _, err := waymysql.SchemaSQL("a b", ""); err == nil {
		t.Error("SchemaSQL of a wrong database = nil error")
	}
	if _, err := waymysql.SchemaSQL("", "A"); err == nil {
		t.Error("SchemaSQL of a wrong prefix = nil error")
	}
	if _, err := waymysql.Open(t.Context(), "root:s3cr3t@tcp(127.0.0.1:1)", waymysql.Config{}); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("Open of a DSN that cannot be read = %v", err)
	}
	c := mysql.NewConfig()
	if _, err := waymysql.OpenConfig(c, waymysql.Config{}); err == nil {
		t.Error("New without a database = nil error")
	}
	db := open(t, dsn, waymysql.Config{})
	if _, err := db.Queue("", waymysql.QueueConfig{}); err == nil {
		t.Error("a queue without a name = nil error")
	}
	if _, err := db.Queue("q", waymysql.QueueConfig{Lease: time.Millisecond}); err == nil {
		t.Error("a lease of 1 ms = nil error")
	}
}

func TestPrintedSchemaIsTheSchema(t *testing.T) {
	t.Parallel()
	for _, cfg := range []waymysql.Config{{}, {Prefix: "msg_"}} {
		for _, mode := range []string{"", "ANSI_QUOTES,PIPES_AS_CONCAT", "NO_BACKSLASH_ESCAPES,ONLY_FULL_GROUP_BY,HIGH_NOT_PRECEDENCE,IGNORE_SPACE"} {
			up, dsn := newDB(t, cfg)
			address := testserver.MariaDB(t)
			printed := open(t, driverDSN(t, address), cfg)
			text, err := printed.SchemaSQL()
			if err != nil {
				t.Fatal(err)
			}
			cmd := client(t, address)
			cmd.Stdin = strings.NewReader("SET SESSION sql_mode = '" + mode + "';\n" + text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("mariadb: %v\n%s", err, out)
			}
			if status, err := printed.SchemaStatus(t.Context()); err != nil || status.Err() != nil {
				t.Errorf("status after the printed statements: %+v, %v", status, err)
			}
			prefix := cfg.Prefix
			if prefix == "" {
				prefix = "waybill_"
			}
			if diff := cmp.Diff(objects(t, up.Pool(), databaseOf(t, dsn), prefix), objects(t, printed.Pool(), databaseOf(t, driverDSN(t, address)), prefix)); diff != "" {
				t.Errorf("by up and by print (-up +print):\n%s", diff)
			}
			put(t, printed, order{"k", 0})
			exec(t, printed, "CALL "+prefix+"dispatch('order.placed', ' ', '{}', '')")
			if got := drained(t, printed); len(got) != 2 {
				t.Errorf("%v came, want two messages", got)
			}
		}
	}
}

func TestSchemaThatDoesNotFitIsRefusedByName(t *testing.T) {
	t.Parallel()
	dsn := driverDSN(t, testserver.MariaDB(t))
	use := func() error {
		db := open(t, dsn, waymysql.Config{})
		_, err := outbox.New(db, outbox.Config{})
		_, listErr := db.Outbox(t.Context(), admin.OutboxQuery{})
		if errors.Is(err, admin.ErrSchema) != errors.Is(listErr, admin.ErrSchema) {
			t.Errorf("outbox.New = %v, Outbox = %v", err, listErr)
		}
		return err
	}
	if err := use(); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "schema up") {
		t.Errorf("without tables: %v", err)
	}
	db := open(t, dsn, waymysql.Config{})
	status, err := db.SchemaUp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for version, ok := range map[int]bool{status.Wanted - 1: false, status.Wanted: true, status.Wanted + 1: true, status.Wanted + 2: false} {
		exec(t, db, "UPDATE waybill_meta SET value = ? WHERE name = 'schema_version'", version)
		if err := use(); (err == nil) != ok || err != nil && !errors.Is(err, admin.ErrSchema) {
			t.Errorf("with version %d: %v", version, err)
		}
	}
	exec(t, db, "UPDATE waybill_meta SET value = ? WHERE name = 'schema_version'", status.Wanted)
	exec(t, db, "UPDATE waybill_meta SET value = '128' WHERE name = 'buckets'")
	if err := use(); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "128 buckets") {
		t.Errorf("with other buckets: %v", err)
	}
	exec(t, db, "DELETE FROM waybill_meta WHERE name = 'buckets'")
	if err := use(); !errors.Is(err, admin.ErrSchema) {
		t.Errorf("without a bucket count: %v, want ErrSchema", err)
	}
	exec(t, db, "INSERT INTO waybill_meta VALUES ('buckets', '64')")
	exec(t, db, "UPDATE waybill_meta SET value = 'md5' WHERE name = 'hash'")
	if err := use(); !errors.Is(err, admin.ErrSchema) || !strings.Contains(err.Error(), "md5") {
		t.Errorf("with another hash: %v", err)
	}
}

// A schema up on tables that are up to date blocks no relay, and waits for none.
func TestSchemaUpUnderLoadTakesNoLongLock(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	publishing := claim(t, db, manyRows)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := db.SchemaUp(ctx); err != nil {
		t.Errorf("SchemaUp beside a publish = %v", err)
	}
	settle(t, publishing, nil)
}
