package waymysql_test

import (
	"context"
	"flag"
	"net/url"
	"os"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waymysql"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests wait for servers most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// driverDSN is a server's URL in the form of the driver.
func driverDSN(tb testing.TB, address string) string {
	tb.Helper()
	u, err := url.Parse(address)
	if err != nil {
		tb.Fatal(err)
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = u.User.Username(), "tcp", u.Host, u.Path[1:]
	cfg.Passwd, _ = u.User.Password()
	return cfg.FormatDSN()
}

// newDB opens a database of t's own, with waybill's tables.
func newDB(t testing.TB, cfg waymysql.Config) (db *waymysql.DB, dsn string) {
	t.Helper()
	dsn = driverDSN(t, testserver.MariaDB(t))
	db = open(t, dsn, cfg)
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db, dsn
}

func open(t testing.TB, dsn string, cfg waymysql.Config) *waymysql.DB {
	t.Helper()
	db, err := waymysql.Open(t.Context(), dsn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func exec(t testing.TB, db *waymysql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.Pool().ExecContext(context.Background(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
