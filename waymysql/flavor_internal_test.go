package waymysql

import (
	"database/sql/driver"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
)

func TestVersionsAreKnown(t *testing.T) {
	for version, want := range map[string]struct{ name, isolation, refusal string }{
		"8.0.19":                                {name: "MySQL 8.0.19", isolation: "transaction_isolation"},
		"8.0.36":                                {name: "MySQL 8.0.36", isolation: "transaction_isolation"},
		"8.0.36-0ubuntu0.22.04.1":               {name: "MySQL 8.0.36", isolation: "transaction_isolation"},
		"8.0.36-28":                             {name: "MySQL 8.0.36", isolation: "transaction_isolation"}, // Percona's
		"8.0.mysql_aurora.3.05.2":               {refusal: "8.0.mysql_aurora"},
		"8.4.3":                                 {name: "MySQL 8.4.3", isolation: "transaction_isolation"},
		"8.4.0-commercial":                      {name: "MySQL 8.4.0", isolation: "transaction_isolation"},
		"9.1.0":                                 {name: "MySQL 9.1.0", isolation: "transaction_isolation"},
		"5.7.44-log":                            {refusal: "MySQL 5.7.44"},
		"8.0.18":                                {refusal: "MySQL 8.0.18"},
		"10.5.23-MariaDB":                       {refusal: "MariaDB 10.5.23"},
		"5.5.5-10.5.8-MariaDB":                  {refusal: "MariaDB 10.5.8"},
		"10.6.0-MariaDB":                        {name: "MariaDB 10.6.0", isolation: "tx_isolation"},
		"10.6.16-MariaDB-log":                   {name: "MariaDB 10.6.16", isolation: "tx_isolation"},
		"10.11.6-MariaDB-0+deb12u1":             {name: "MariaDB 10.11.6", isolation: "tx_isolation"},
		"5.5.5-10.11.6-MariaDB":                 {name: "MariaDB 10.11.6", isolation: "tx_isolation"},
		"11.0.2-MariaDB":                        {name: "MariaDB 11.0.2", isolation: "tx_isolation"},
		"11.4.2-MariaDB-ubu2404":                {name: "MariaDB 11.4.2", isolation: "transaction_isolation"},
		"11.8.1-mariadb":                        {name: "MariaDB 11.8.1", isolation: "transaction_isolation"},
		"5.5.5-10.11.6-MariaDB-1:10.11.6+maria": {name: "MariaDB 10.11.6", isolation: "tx_isolation"},
		"":                                      {refusal: `""`},
		"MariaDB":                               {refusal: `"MariaDB"`},
		"8":                                     {refusal: "8.0.0"},
		"eight.0.1":                             {refusal: `"eight.0.1"`},
		"8.0.36.1":                              {refusal: `"8.0.36.1"`},
		"8.0.-1":                                {refusal: `"8.0.-1"`},
		"PostgreSQL 15.2":                       {refusal: `"PostgreSQL 15.2"`},
	} {
		got, err := parseFlavor(version)
		switch {
		case want.refusal != "":
			if err == nil || !strings.Contains(err.Error(), want.refusal) || !strings.Contains(err.Error(), "want") {
				t.Errorf("parseFlavor(%q) = %v, %v, want an error with %s", version, got, err, want.refusal)
			}
		case err != nil || got.String() != want.name || got.isolation != want.isolation:
			t.Errorf("parseFlavor(%q) = %v with %s, %v, want %s with %s", version, got, got.isolation, err, want.name, want.isolation)
		}
	}
}

// Settings that the tests' server cannot have.
func TestSettingsOfOtherServersAreKnown(t *testing.T) {
	for _, c := range []struct{ name, value, refusal string }{
		{"super_read_only", "ON", "primary"}, {"innodb_read_only", "ON", "primary"}, {"wsrep_on", "OFF", ""}, {"super_read_only", "OFF", ""},
		{"innodb_flush_log_at_trx_commit", "1", ""}, {"max_execution_time", "5", ""}, // of statements that only read
		{"max_statement_time", "0.000000", ""}, {"max_statement_time", "0.500000", "at least 30"}, {"max_statement_time", "30.000000", ""},
	} {
		err := checkSettings(map[string]string{"auto_increment_increment": "1", c.name: c.value}, 30*time.Second)
		if (err == nil) != (c.refusal == "") || err != nil && (!strings.Contains(err.Error(), c.name+" = "+c.value) || !strings.Contains(err.Error(), c.refusal)) {
			t.Errorf("%s = %s: %v, want %q", c.name, c.value, err, c.refusal)
		}
	}
}

// A setting that relays need is not left to chance beside one of the DSN, however it is
// written.
func TestSettingsOfRelaysReplaceThoseOfTheDSN(t *testing.T) {
	cfg, err := mysql.ParseDSN("u@tcp(localhost)/db?TX_Isolation=%27SERIALIZABLE%27&Wait_Timeout=5&AUTOCOMMIT=0&sql_mode=%27ANSI%27")
	if err != nil {
		t.Fatal(err)
	}
	var c driver.Connector
	keep := func(made driver.Connector) driver.Connector { c = made; return made }
	if _, err := (connections{cfg}).open(map[string]string{"transaction_isolation": "'READ-COMMITTED'", "wait_timeout": "30", "autocommit": "1"}, keep, 0); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"transaction_isolation": "'READ-COMMITTED'", "wait_timeout": "30", "autocommit": "1", "completion_type": "'NO_CHAIN'", "sql_mode": "'ANSI'"}
	if got := c.(connector).cfg.Params; !maps.Equal(got, want) {
		t.Errorf("parameters %v, want %v", got, want)
	}
}

// A row that was changed since the transaction's snapshot is no fault of the inserted
// record, and the transaction may be run again.
func TestChangedRecordIsUnavailability(t *testing.T) {
	err := translate(&mysql.MySQLError{Number: 1020, SQLState: [5]byte([]byte("HY000"))})
	if !errors.Is(err, waybill.ErrUnavailable) || refusesRecord(err) || !notCommitted(err) {
		t.Errorf("error 1020 = %v", err)
	}
}

// A full disk or a read-only server fails the statement ahead of COMMIT; an interruption
// may hit the COMMIT itself.
func TestOutagesOfTheServer(t *testing.T) {
	for _, c := range []struct {
		number uint16
		known  bool
	}{
		{3, true}, {1021, true}, {1026, true}, {1114, true}, {errReadOnly, true}, {errDeadlock, true}, {errLockWait, true},
		{1053, false}, {1317, false}, {errKilled, false}, {errStatementLimit, false}, {errIdleTimeout, false},
	} {
		err := &mysql.MySQLError{Number: c.number, SQLState: [5]byte([]byte("HY000"))}
		if !errors.Is(translate(err), waybill.ErrUnavailable) || refusesRecord(err) || notCommitted(err) != c.known {
			t.Errorf("error %d: %v, known not to be committed %v, want ErrUnavailable, %v", c.number, translate(err), notCommitted(err), c.known)
		}
	}
}
