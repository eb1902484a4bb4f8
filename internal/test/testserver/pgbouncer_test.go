package testserver

import (
	"net/url"
	"testing"
)

func TestPgBouncerGivesItsServersToTransactions(t *testing.T) {
	t.Parallel()
	dsn := StartPgBouncer(t, Postgres(t), "transaction")
	if got := query(t, dsn, "CREATE TABLE thing (id int); INSERT INTO thing VALUES (7); SELECT id FROM thing"); got != "CREATE TABLE\nINSERT 0 1\n7" {
		t.Errorf("through PgBouncer = %q, want a row 7", got)
	}
	admin, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	admin.Path = "/pgbouncer"
	if err := psql(admin.String(), "SHOW VERSION"); err != nil {
		t.Errorf("the server behind the DSN is no PgBouncer: %v", err)
	}
}
