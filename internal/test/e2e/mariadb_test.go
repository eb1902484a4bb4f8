package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waytest"
)

var mariaDBKind = kind{
	name:    "mariadb",
	fresh:   testserver.MariaDB,
	start:   func(tb testing.TB) *testserver.Server { return testserver.StartMariaDB(tb, nil) },
	open:    openMariaDB,
	id:      func(id waybill.MessageID) any { return id[:] },
	text:    func(address string) string { return option(address, "tls", "disable") }, // newer servers offer TLS
	again:   mariaDBAgain,
	locks:   "outbox_bucket FORCE INDEX (PRIMARY)",
	reads:   "SELECT e.bucket, NULL, e.id",
	deletes: "DELETE o",
	commits: "COMMIT",
	now:     "SELECT CAST(now() AS CHAR)",
	began:   "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = database() AND t.trx_started <= ?",
	says:    "concat_ws(' ', p.id, p.command, p.time, p.state, p.info, t.trx_started, t.trx_state, t.trx_rows_locked, t.trx_rows_modified)",
	pause:   200 * time.Millisecond,
	grace:   8 * time.Second, // its timeouts are whole seconds
	client:  mariadbClient,
}

// mariaDBAgain is kind.again. From MariaDB 11.6 on the server rolls back a transaction
// that locks a row which changed after its snapshot: a gate, whose name is new.
func mariaDBAgain(err error) bool {
	var server *driver.MySQLError
	return errors.Is(err, outbox.ErrBucketsChanged) || errors.As(err, &server) && server.Number == 1020
}

// mariaDB is a database, with transactions of database/sql.
type mariaDB struct{ *waymysql.DB }

func openMariaDB(_ context.Context, address string, how opening) (database, error) {
	dsn, err := config.ParseDSN(address)
	if err != nil {
		return nil, err
	}
	cfg, err := mysql.Config(dsn)
	if err != nil {
		return nil, err
	}
	if how.dial != nil {
		cfg.DialFunc = how.dial
	}
	db, err := waymysql.OpenConfig(cfg, waymysql.Config{IdleTimeout: how.idle})
	return mariaDB{db}, err
}

func (db mariaDB) look(statement string) (*sql.DB, string) { return db.Pool(), statement }

func (db mariaDB) application(cfg outbox.Config) (application, error) {
	out, err := outbox.New(db.DB, cfg)
	if err != nil {
		return nil, err
	}
	rows := &counters{pool: db.Pool(), known: map[string]bool{}}
	return &app[*sql.Tx]{
		out: out,
		begin: func(ctx context.Context, fn func(tx *sql.Tx) error) error {
			tx, err := db.Pool().BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // after a commit it does nothing
			if err := fn(tx); err != nil {
				return err
			}
			return tx.Commit()
		},
		exec: func(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
			_, err := tx.ExecContext(ctx, statement, args...)
			return err
		},
		next: rows.next,
	}, nil
}

func (db mariaDB) handle(bus *waybill.Bus, after func()) {
	inbox.Handle(bus, db.DB, "count", func(ctx context.Context, tx *sql.Tx, m counted) error {
		id, _ := waybill.Last[waybill.MessageID](waybill.EnvelopeFrom(ctx))
		_, err := tx.ExecContext(ctx, "INSERT INTO effects (k, n, message_id) VALUES (?, ?, ?)", m.Key, m.N, id.String())
		after()
		return err
	})
}

func (db mariaDB) leased(name string, lease time.Duration) (waytest.Transport, error) {
	return db.Queue(name, waymysql.QueueConfig{Lease: lease})
}

// counters are the rows of the table counts. They are made before a transaction
// needs them: two that insert side by side can deadlock.
type counters struct {
	pool *sql.DB

	mu    sync.Mutex
	known map[string]bool
}

func (c *counters) next(ctx context.Context, tx *sql.Tx, keys []string, each int) (map[string]int, error) {
	if err := c.create(ctx, keys); err != nil {
		return nil, err
	}
	in := "(?" + strings.Repeat(", ?", len(keys)-1) + ")"
	if _, err := tx.ExecContext(ctx, "UPDATE counts SET n = n + ? WHERE k IN "+in+" ORDER BY k", append([]any{each}, anys(keys)...)...); err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, "SELECT k, n FROM counts WHERE k IN "+in, anys(keys)...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	last := map[string]int{}
	for rows.Next() {
		var key string
		var n int
		if err := rows.Scan(&key, &n); err != nil {
			return nil, err
		}
		last[key] = n
	}
	return last, errors.Join(rows.Err(), rows.Close())
}

func (c *counters) create(ctx context.Context, keys []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys = slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return c.known[key] })
	if len(keys) == 0 {
		return nil
	}
	if _, err := c.pool.ExecContext(ctx, "INSERT IGNORE INTO counts (k, n) VALUES (?, 0)"+strings.Repeat(", (?, 0)", len(keys)-1), anys(keys)...); err != nil {
		return err
	}
	for _, key := range keys {
		c.known[key] = true
	}
	return nil
}

// A line with a key and its number precedes one with the id of its message.
const (
	mariadbOne = `START TRANSACTION;
UPDATE counts SET n = n + 1 WHERE k = '%[1]s';
SELECT k, n, 0 FROM counts WHERE k = '%[1]s';
CALL waybill_dispatch('key.counted', '%[1]s', '{}', (SELECT JSON_OBJECT('Key', k, 'N', n) FROM counts WHERE k = '%[1]s'));
COMMIT;
`
	mariadbAll = `START TRANSACTION;
UPDATE counts SET n = n + 1 WHERE k IN (%[1]s) ORDER BY k;
SELECT k, n, 0 FROM counts WHERE k IN (%[1]s) ORDER BY k;
SET group_concat_max_len = 1000000; -- MySQL's JSON_ARRAYAGG has no order
SET @all = (SELECT CONCAT('[', GROUP_CONCAT(JSON_OBJECT('name', 'key.counted', 'key', k, 'headers', JSON_OBJECT(), 'body', TO_BASE64(JSON_OBJECT('Key', k, 'N', n))) ORDER BY k), ']')
	FROM counts WHERE k IN (%[1]s));
CALL waybill_dispatch_all(NULL, @all);
COMMIT;
`
)

func mariadbClient(s *stack, keys []string, rounds int) error {
	var script strings.Builder
	fmt.Fprintf(&script, "INSERT IGNORE INTO counts (k, n) VALUES ('%s', 0);\n", strings.Join(keys, "', 0), ('"))
	for range rounds {
		for _, key := range keys {
			fmt.Fprintf(&script, mariadbOne, key)
		}
		fmt.Fprintf(&script, mariadbAll, "'"+strings.Join(keys, "', '")+"'")
	}
	cmd := mariadb(s.database)
	cmd.Stdin = strings.NewReader(script.String())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("mariadb: %w\n%s", err, &stderr)
	}
	var waiting [][]string
	var sent []any
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 3 {
			waiting = append(waiting, fields)
			continue
		}
		sent = append(sent, waiting[0][0], waiting[0][1], "key.counted", fields[0])
		waiting = waiting[1:]
	}
	for all := range slices.Chunk(sent, 4*1000) {
		pool, _ := s.db.look("")
		if _, err := pool.Exec("INSERT INTO sent (k, n, name, message_id) VALUES (?, ?, ?, ?)"+strings.Repeat(", (?, ?, ?, ?)", len(all)/4-1), all...); err != nil {
			return err
		}
	}
	return nil
}
