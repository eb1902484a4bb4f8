package main

import (
	"database/sql"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waycli/mysql"
)

// A monitor that asks while a session locks a table, as DDL does, hears of it.
func TestLockedTableIsNotWaitedForWithoutEnd(t *testing.T) {
	for _, at := range []struct {
		dsn  string
		open func(*testing.T, string) *sql.DB
		lock []string
	}{
		{testserver.Postgres(t), openPostgres, []string{"BEGIN", "LOCK TABLE waybill_outbox"}},
		{testserver.MariaDB(t), openMariaDB, []string{"LOCK TABLES waybill_outbox WRITE"}},
	} {
		say(t, 0, "schema", "up", "--database", at.dsn)
		locker, err := at.open(t, at.dsn).Conn(t.Context())
		fatal(t, err)
		for _, statement := range at.lock {
			_, err := locker.ExecContext(t.Context(), statement)
			fatal(t, err)
		}
		for _, command := range []string{"stats", "outbox stats", "doctor"} {
			args := append(strings.Fields(command), "--timeout", "1s", "--database", at.dsn)
			if said := say(t, 6, args...); !strings.Contains(said, "no answer within 1s\n") || !strings.Contains(said, "may have locked a table") {
				t.Errorf("%s says:\n%s", command, said)
			}
		}
	}
}

func openPostgres(t *testing.T, dsn string) *sql.DB {
	db, err := sql.Open("pgx", dsn)
	fatal(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openMariaDB(t *testing.T, dsn string) *sql.DB {
	cfg, err := mysql.Config(config.MustParseDSN(dsn))
	fatal(t, err)
	connector, err := driver.NewConnector(cfg)
	fatal(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	return db
}
