package main

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/testserver"
)

// A monitor that asks while a session locks a table, as DDL does, hears of it.
func TestLockedTableIsNotWaitedForWithoutEnd(t *testing.T) {
	for _, at := range []struct {
		dsn  string
		lock []string
	}{
		{testserver.Postgres(t), []string{"BEGIN", "LOCK TABLE waybill_outbox"}},
		{testserver.MariaDB(t), []string{"LOCK TABLES waybill_outbox WRITE"}},
	} {
		say(t, 0, "schema", "up", "--database", at.dsn)
		db, err := openServer(config.MustParseDSN(at.dsn), at.dsn)
		fatal(t, err)
		t.Cleanup(func() { _ = db.Close() })
		locker, err := db.Conn(t.Context())
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
