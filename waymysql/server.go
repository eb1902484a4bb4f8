package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
)

// A flavor is a server's name and version, as far as statements differ.
type flavor struct {
	mariaDB bool
	version [3]int
	// isolation is the name of the variable of a session's isolation level.
	isolation string
}

func (f flavor) String() string {
	name := "MySQL"
	if f.mariaDB {
		name = "MariaDB"
	}
	return fmt.Sprintf("%s %d.%d.%d", name, f.version[0], f.version[1], f.version[2])
}

// parseFlavor reads a server's version, such as "8.0.36" or
// "10.11.19-MariaDB-0+deb12u1".
func parseFlavor(version string) (flavor, error) {
	f := flavor{mariaDB: strings.Contains(strings.ToLower(version), "mariadb"), isolation: "transaction_isolation"}
	number, _, _ := strings.Cut(strings.TrimPrefix(version, "5.5.5-"), "-") // how MariaDB greets old clients
	for i, part := range strings.SplitN(number, ".", 3) {
		n, err := strconv.Atoi(part)
		if err != nil {
			return flavor{}, fmt.Errorf("waymysql: the server's version is %q: want one like 8.0.36 or 10.11.6-MariaDB", version)
		}
		f.version[i] = n
	}
	oldest := []int{8, 0, 19}
	if f.mariaDB {
		oldest = []int{10, 6, 0}
		if f.before(11, 1, 1) {
			f.isolation = "tx_isolation"
		}
	}
	if f.before(oldest...) {
		return flavor{}, fmt.Errorf("waymysql: the server is %v: want MySQL 8.0.19 or later, or MariaDB 10.6 or later, which can skip locked rows", f)
	}
	return f, nil
}

func (f flavor) before(version ...int) bool { return slices.Compare(f.version[:], version) < 0 }

// server asks for the server's version, and its largest packet, once.
func (db *DB) server(ctx context.Context) (flavor, error) {
	db.mu.Lock()
	known := db.flavor
	db.mu.Unlock()
	if known != (flavor{}) {
		return known, nil
	}
	var version string
	var packet int
	if err := db.pool.QueryRowContext(ctx, db.serving.Query("version")).Scan(&version, &packet); err != nil {
		return flavor{}, translate(err)
	}
	found, err := parseFlavor(version)
	if err != nil {
		return flavor{}, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.flavor, db.maxPacket = found, packet
	return found, nil
}

func (db *DB) isMariaDB() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.flavor.mariaDB
}

// A settingError says which setting of the server must be another.
type settingError struct{ name, value, want, why string }

func (e *settingError) Error() string {
	return fmt.Sprintf("waymysql: the server has %s = %s, want %s: %s", e.name, e.value, e.want, e.why)
}

// writer makes sure that the server's settings keep the outbox's promises. It looks
// once; readers do not need it.
func (db *DB) writer(ctx context.Context) error {
	if err := db.ensureSchema(ctx); err != nil {
		return err
	}
	db.mu.Lock()
	writable := db.writable
	db.mu.Unlock()
	if writable {
		return nil
	}
	return db.checkServer(ctx)
}

// checkServer is writer without a memory.
func (db *DB) checkServer(ctx context.Context) error {
	settings := map[string]string{}
	err := each(ctx, db.pool, db.outbox.Query("server"), func(rows *sql.Rows) error {
		var name, value string
		err := rows.Scan(&name, &value)
		settings[strings.ToLower(name)] = value
		return err
	})
	if err != nil {
		return translate(err)
	}
	if err := errors.Join(checkSettings(settings, db.idle), db.checkChangedRows(ctx)); err != nil {
		return err
	}
	unwritten := !strings.EqualFold(settings["log_bin"], "ON") || !db.logsAll(ctx)
	db.mu.Lock()
	defer db.mu.Unlock()
	db.writable, db.unwritten = true, unwritten
	return nil
}

// logsAll reports whether the binary log certainly has every database.
func (db *DB) logsAll(ctx context.Context) bool {
	for _, name := range []string{"binary_log", "binary_log_since_8_2"} {
		rows, err := db.pool.QueryContext(ctx, db.serving.Query(name))
		if err != nil {
			continue
		}
		defer rows.Close()
		names, _ := rows.Columns()
		values, to := make([]sql.NullString, len(names)), make([]any, len(names))
		for i := range values {
			to[i] = &values[i]
		}
		// File, position, and the two lists of databases.
		return rows.Next() && rows.Scan(to...) == nil && len(values) >= 4 && values[2].String == "" && values[3].String == ""
	}
	return false
}

// showsUnwritten reports whether the server shows commits that it would forget if
// it were killed. With a binary log it shows commits that are in the log.
func (db *DB) showsUnwritten() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.unwritten
}

// checkSettings refuses servers on which keys would lose their order, commits
// would not be durable, or relays their rows.
func checkSettings(settings map[string]string, idle time.Duration) error {
	for _, no := range []struct{ name, value, want, why string }{
		{"wsrep_on", "ON", "OFF", "on a Galera cluster neither locks nor ids are those of all nodes, so keys would lose their order"},
		{"read_only", "ON", "OFF", "connect to the primary"},
		{"super_read_only", "ON", "OFF", "connect to the primary"},
		{"innodb_read_only", "ON", "OFF", "connect to the primary"},
		{"innodb_flush_log_at_trx_commit", "0", "1", "a server that is killed forgets commits whose messages have been sent"},
	} {
		if !strings.EqualFold(settings[no.name], no.value) {
			continue
		}
		err := &settingError{no.name, settings[no.name], no.want, no.why}
		if strings.HasSuffix(no.name, "read_only") { // until it is promoted, or the address is that of the primary
			return fmt.Errorf("%w: %w", waybill.ErrUnavailable, err)
		}
		return err
	}
	if by := settings["auto_increment_increment"]; by != "1" {
		return &settingError{"auto_increment_increment", by, "1", "with several servers that give ids, ids are not in commit order"}
	}
	// Unlike wait_timeout these are not the relay's to set: an operator wants them.
	for _, name := range []string{"idle_transaction_timeout", "idle_write_transaction_timeout", "idle_readonly_transaction_timeout", "max_statement_time"} {
		seconds, err := strconv.ParseFloat(cmp.Or(settings[name], "0"), 64)
		if err == nil && seconds > 0 && seconds < idle.Seconds() {
			return &settingError{name, settings[name], fmt.Sprintf("0 or at least %v, for the user waybill connects as (a relay's idle timeout)", idle.Seconds()), "it would end a relay's transaction while it publishes"}
		}
	}
	return nil
}
