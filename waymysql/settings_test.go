package waymysql_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// refuses checks that who writes, dispatches or relays is told the setting, and
// that who only reads is not.
func refuses(t *testing.T, dsn, setting string) {
	t.Helper()
	db := open(t, dsn, waymysql.Config{})
	relay := newRelay(t, db, &recorder{}, outbox.RelayConfig{Drain: true})
	q, err := db.Queue("q", waymysql.QueueConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_, newErr := outbox.New(db, outbox.Config{To: "new"})
	for what, err := range map[string]error{
		"outbox.New": newErr, "Relay.Run": relay.Run(t.Context()), "Send": q.Send(t.Context(), record(t, order{"k", 0})),
		"InTx": db.InTx(t.Context(), nil),
	} {
		if err == nil || !strings.Contains(err.Error(), " "+setting+" = ") || what != "Send" && errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("%s: %s = %v, want an error with its name", setting, what, err)
		}
	}
	if _, err := db.Outbox(t.Context(), admin.OutboxQuery{}); err != nil {
		t.Errorf("%s: a listing = %v", setting, err)
	}
	if _, err := db.OutboxStats(t.Context()); err != nil {
		t.Errorf("%s: statistics = %v", setting, err)
	}
}

func TestServerThatCannotKeepThePromisesIsRefused(t *testing.T) {
	t.Parallel()
	db, dsn := alone(t)
	put(t, db, order{"k", 0})
	refusesEach(t, db, dsn, [][3]string{
		{"auto_increment_increment", "2", "1"},
		{"innodb_flush_log_at_trx_commit", "0", "1"},
	})
	// A setting of the session counts.
	refuses(t, with(t, dsn, map[string]string{"auto_increment_increment": "3"}), "auto_increment_increment")
	// Settings that keep the promises are allowed.
	for name, value := range map[string]string{"innodb_flush_log_at_trx_commit": "2", "auto_increment_offset": "2"} {
		exec(t, db, "SET GLOBAL "+name+" = "+value)
	}
	fresh := open(t, dsn, waymysql.Config{})
	put(t, fresh, order{"k", 1})
	if got := drained(t, fresh); len(got) != 2 {
		t.Errorf("%v came, want two messages", got)
	}
}

// A server that is read-only may be promoted, or its address become that of the primary: relays wait, and
// the messages of handlers have not failed.
func TestReadOnlyServerIsAnOutage(t *testing.T) {
	t.Parallel()
	db, dsn := alone(t)
	put(t, db, order{"k", 0})
	exec(t, db, "SET GLOBAL read_only = 1")
	fresh := open(t, dsn, waymysql.Config{})
	_, relaying := fresh.StartRelay(t.Context())
	handling := fresh.InTx(t.Context(), func(context.Context, *sql.Tx) error { return nil })
	for what, err := range map[string]error{"StartRelay": relaying, "InTx": handling} {
		if !errors.Is(err, waybill.ErrUnavailable) || !strings.Contains(err.Error(), "read_only = ON, want OFF: connect to the primary") {
			t.Errorf("%s on a read-only server = %v, want ErrUnavailable and where to connect to", what, err)
		}
	}
	exec(t, db, "SET GLOBAL read_only = 0")
	if got := drained(t, fresh); len(got) != 1 {
		t.Errorf("%v came after the promotion, want one message", got)
	}
}

// refusesEach checks refusals of settings, which have a name, a value that is refused
// and the default.
func refusesEach(t *testing.T, db *waymysql.DB, dsn string, settings [][3]string) {
	t.Helper()
	for _, c := range settings {
		exec(t, db, "SET GLOBAL "+c[0]+" = "+c[1])
		refuses(t, dsn, c[0])
		exec(t, db, "SET GLOBAL "+c[0]+" = "+c[2])
	}
}

func TestServerThatEndsTransactionsOfRelaysIsRefused(t *testing.T) {
	t.Parallel()
	db, dsn := alone(t)
	needsMariaDB(t, dsn, "idle_transaction_timeout and max_statement_time are settings of MariaDB")
	put(t, db, order{"k", 0})
	refusesEach(t, db, dsn, [][3]string{
		{"idle_transaction_timeout", "29", "0"},
		{"idle_write_transaction_timeout", "5", "0"},
		{"idle_readonly_transaction_timeout", "5", "0"},
		{"max_statement_time", "29.5", "0"},
	})
	// A setting of the session or of the user counts.
	for name, value := range map[string]string{"max_statement_time": "1", "idle_transaction_timeout": "1"} {
		refuses(t, with(t, dsn, map[string]string{name: value}), name)
	}
	exec(t, db, "CREATE USER hasty IDENTIFIED BY 'secret' WITH MAX_STATEMENT_TIME 2")
	exec(t, db, "GRANT ALL ON *.* TO hasty")
	hasty, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	hasty.User, hasty.Passwd = "hasty", "secret"
	refuses(t, hasty.FormatDSN(), "max_statement_time")
	// A long timeout is allowed.
	for name, value := range map[string]string{"idle_transaction_timeout": "30", "idle_write_transaction_timeout": "31", "max_statement_time": "30"} {
		exec(t, db, "SET GLOBAL "+name+" = "+value)
	}
	fresh := open(t, dsn, waymysql.Config{})
	put(t, fresh, order{"k", 1})
	if got := drained(t, fresh); len(got) != 2 {
		t.Errorf("%v came, want two messages", got)
	}
	if err := open(t, dsn, waymysql.Config{IdleTimeout: 40 * time.Second}).InTx(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "idle_transaction_timeout = 30, want 0 or at least 40") && !strings.Contains(err.Error(), "_transaction_timeout = 31, want 0 or at least 40") && !strings.Contains(err.Error(), "max_statement_time = 30") {
		t.Errorf("with an idle timeout of 40 s: %v", err)
	}
}

// A node of a Galera cluster keeps the keys' order on no other node.
func TestGaleraIsRefused(t *testing.T) {
	t.Parallel()
	needsMariaDB(t, driverDSN(t, testserver.MariaDB(t)), "wsrep_on is a setting of MariaDB")
	server := testserver.StartMariaDB(t, map[string]string{"wsrep_on": "ON", "binlog_format": "ROW"})
	dsn := driverDSN(t, server.URL())
	db := open(t, with(t, dsn, map[string]string{"wsrep_on": "0"}), waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	refuses(t, dsn, "wsrep_on")
}
