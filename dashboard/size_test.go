package dashboard_test

import (
	"database/sql"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waypg"
)

// go test ./dashboard -run TestPageTimes -v -args -rows 1000000 -letters 200000 -blocked 10000
var (
	rows    = flag.Int("rows", 2000, "messages in the outbox of TestPageTimes")
	letters = flag.Int("letters", 1000, "dead letters, and half as many retries")
	blocked = flag.Int("blocked", 100, "blocked keys")
	within  = flag.Duration("within", 0, "the longest time of a page after the first; 0 means any")
)

// sized are statements that fill the tables with {rows}, {letters} and {blocked} rows; the
// numbers are one after another in n.
var sized = map[string][]string{
	"sqlite": {
		`INSERT INTO waybill_outbox (transport, message_id, message_name, partition_key, body)
		 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows})
		 SELECT 1, randomblob(16), 'order.' || (n % 20), 'k' || (n % 50000), '{"orderId":"o-1"}' FROM n`,
		`INSERT INTO waybill_outbox_blocked (transport, partition_key, row_id, message_id, message_name, failures, first_failed_at, next_attempt_at, last_error, policy)
		 SELECT transport, partition_key, id, message_id, message_name, 3, created_at, created_at + 3600000000, 'exchange is full', 'block' FROM waybill_outbox WHERE id <= {blocked}`,
		`INSERT INTO waybill_failed (source, transport, failure_transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, first_failed_at, failed_at, last_error, handler, fingerprint)
		 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {letters})
		 SELECT 'worker', 'billing', 'failed', 'failed', randomblob(16), 'order.' || (n % 20), 'k' || n, '{}', '{}', unixepoch() * 1000000, 9, unixepoch() * 1000000, (unixepoch() - n % 600000) * 1000000, 'connection refused', 'invoices', 'f' || (n % 40) FROM n`,
		`INSERT INTO waybill_retry (queue, message_id, message_name, partition_key, body, failures, held, held_until)
		 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {letters} / 2)
		 SELECT 'billing', randomblob(16), 'order.' || (n % 20), 'k' || n, '{}', 1, 1, 9000000000000000 FROM n`,
		`INSERT INTO waybill_inbox (handler, dedup_key, message_id, processed_at)
		 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows})
		 SELECT 'handler' || (n % 4), 'd' || n, randomblob(16), unixepoch() * 1000000 FROM n`,
		`ANALYZE`,
	},
	"postgres": {
		`INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body)
		 SELECT t.id, waybill_bucket_of('k' || (n % 50000), 64), gen_random_uuid(), 'order.' || (n % 20), 'k' || (n % 50000), '{"orderId":"o-1"}' FROM generate_series(1, {rows}) AS n, waybill_transport AS t`,
		`INSERT INTO waybill_outbox_blocked (transport, partition_key, row_id, bucket, message_id, message_name, failures, next_attempt_at, last_error)
		 SELECT transport, partition_key, id, bucket, message_id, message_name, 3, now() + interval '1 hour', 'exchange is full' FROM waybill_outbox WHERE id <= {blocked}
		 ON CONFLICT DO NOTHING`,
		`INSERT INTO waybill_failed (source, transport, failure_transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, first_failed_at, failed_at, last_error, handler, fingerprint)
		 SELECT 'worker', 'billing', 'failed', 'failed', gen_random_uuid(), 'order.' || (n % 20), 'k' || n, '{}', '{}', now(), 9, now(), now() - make_interval(secs => n % 600000), 'connection refused', 'invoices', 'f' || (n % 40) FROM generate_series(1, {letters}) AS n`,
		`INSERT INTO waybill_retry (queue, message_id, message_name, partition_key, body, failures, held, held_until)
		 SELECT 'billing', gen_random_uuid(), 'order.' || (n % 20), 'k' || n, '{}', 1, 1, now() + interval '1 hour' FROM generate_series(1, {letters} / 2) AS n`,
		`INSERT INTO waybill_inbox (handler, dedup_key, message_id) SELECT 'handler' || (n % 4), 'd' || n, gen_random_uuid() FROM generate_series(1, {rows}) AS n`,
		`ANALYZE`,
	},
	"mariadb": {
		`INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body)
		 SELECT t.id, CONV(LEFT(SHA2(CONCAT('k', n.seq % 50000), 256), 4), 16, 10) % 64, UNHEX(MD5(n.seq)), CONCAT('order.', n.seq % 20), CONCAT('k', n.seq % 50000), '{"orderId":"o-1"}' FROM seq_1_to_{rows} AS n JOIN waybill_transport AS t`,
		`INSERT IGNORE INTO waybill_outbox_blocked (transport, partition_key, row_id, bucket, message_id, message_name, failures, first_failed_at, next_attempt_at, last_error)
		 SELECT transport, partition_key, id, bucket, message_id, message_name, 3, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 'exchange is full' FROM waybill_outbox WHERE id BETWEEN 1 AND {blocked}`,
		`INSERT INTO waybill_failed (source, transport, failure_transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, first_failed_at, failed_at, last_error, handler, fingerprint)
		 SELECT 'worker', 'billing', 'failed', 'failed', UNHEX(MD5(n.seq)), CONCAT('order.', n.seq % 20), CONCAT('k', n.seq), '{}', '{}', UTC_TIMESTAMP(6), 9, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL (n.seq % 600000) SECOND, 'connection refused', 'invoices', CONCAT('f', n.seq % 40) FROM seq_1_to_{letters} AS n`,
		`INSERT INTO waybill_retry (queue, message_id, message_name, partition_key, body, failures, held, held_until)
		 SELECT 'billing', UNHEX(MD5(n.seq)), CONCAT('order.', n.seq % 20), CONCAT('k', n.seq), '{}', 1, 1, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR FROM seq_1_to_{letters} AS n WHERE n.seq % 2 = 0`,
		`INSERT INTO waybill_inbox (handler, dedup_key, message_id) SELECT CONCAT('handler', n.seq % 4), CONCAT('d', n.seq), UNHEX(MD5(n.seq)) FROM seq_1_to_{rows} AS n`,
		`ANALYZE TABLE waybill_outbox, waybill_outbox_blocked, waybill_failed, waybill_retry, waybill_inbox`,
	},
}

// sizedPages are the pages whose times count.
var sizedPages = []string{
	"/", "/?range=7d", "/outbox", "/outbox?key=k5", "/outbox?transport=events", "/failed", "/failed?limit=10", "/failed?fingerprint=f7", "/failed/list", "/failed/list?fingerprint=f7", "/failed/list?key=k77",
	"/failed/9", "/retries", "/retries?key=k20", "/inbox", "/inbox?id=d5", "/workers", "/audit", "/system", "/api/v1/overview", "/api/v1/blocked", "/api/v1/outbox?limit=1000",
}

func TestPageTimes(t *testing.T) {
	fill := func(t *testing.T, db *sql.DB, dialect string, f *fixture) {
		t.Helper()
		f.dispatch("k0") // makes the transport
		f.counted(slices.Repeat([]int64{5}, 1000)...)
		for _, statement := range sized[dialect] {
			text := strings.NewReplacer("{rows}", fmt.Sprint(*rows), "{letters}", fmt.Sprint(*letters), "{blocked}", fmt.Sprint(*blocked)).Replace(statement)
			if _, err := db.ExecContext(t.Context(), text); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
		}
		pageTimes(t, f)
	}
	t.Run("sqlite", func(t *testing.T) {
		f := newFixture(t, dashboard.Config{})
		db, err := sql.Open("sqlite", "shop.db")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		fill(t, db, "sqlite", f)
	})
	t.Run("postgres", func(t *testing.T) {
		dsn := testserver.Postgres(t)
		db, err := waypg.Open(t.Context(), dsn, waypg.Config{})
		if err != nil {
			t.Fatal(err)
		}
		plain, err := sql.Open("pgx", dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close()
		fill(t, plain, "postgres", fixtureOn(t, db, dispatcher(t, db), dashboard.Config{}))
	})
	t.Run("mariadb", func(t *testing.T) {
		dsn := mariaDB(t)
		db, err := waymysql.Open(t.Context(), dsn, waymysql.Config{})
		if err != nil {
			t.Fatal(err)
		}
		plain, err := sql.Open("mysql", dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close()
		fill(t, plain, "mariadb", fixtureOn(t, db, dispatcher(t, db), dashboard.Config{}))
	})
}

// mariaDB returns the DSN of a private server.
func mariaDB(t *testing.T) string {
	t.Helper()
	address, err := url.Parse(testserver.MariaDB(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = address.User.Username(), "tcp", address.Host, address.Path[1:]
	cfg.Passwd, _ = address.User.Password()
	return cfg.FormatDSN()
}

// pageTimes prints how long each page takes, at first and afterwards.
func pageTimes(t *testing.T, f *fixture) {
	t.Helper()
	once := func(page string) (time.Duration, int) {
		start := time.Now()
		res, _ := f.do("GET", page, nil)
		return time.Since(start).Round(time.Millisecond), res.StatusCode
	}
	t.Logf("%-34s %9s %9s", "page", "first", "then")
	for _, page := range sizedPages {
		first, status := once(page)
		then := make([]time.Duration, 5)
		for i := range then {
			then[i], status = once(page)
		}
		slices.Sort(then)
		t.Logf("%-34s %9v %9v", page, first, then[2])
		if status != http.StatusOK || *within > 0 && then[2] > *within {
			t.Errorf("%s answers %d in %v", page, status, then[2])
		}
	}
}
