package waymysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	osexec "os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waytest"
)

// order is the message of these tests.
type order struct {
	Key string `json:"key"`
	Seq int    `json:"seq"`
}

func (order) MessageName() string    { return "order.placed" }
func (o order) PartitionKey() string { return o.Key }

func bodyOf(rec *waybill.Record) (o order) {
	_ = waybill.JSON{}.Decode(rec.Body, &o)
	return o
}

// record is a message as it arrives.
func record(t testing.TB, o order) *waybill.Record {
	t.Helper()
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	return &waybill.Record{ID: id, Name: "order.placed", Key: o.Key, Body: fmt.Appendf(nil, `{"key":%q,"seq":%d}`, o.Key, o.Seq), DispatchedAt: time.Now()}
}

var (
	errRefused = errors.New("refused by the broker")

	// noRetry means no second attempt before the test says so, however slow the
	// machine is.
	noRetry  = waybill.Backoff{Delay: time.Hour, MaxDelay: time.Hour, Jitter: -1}
	manyRows = outbox.ClaimLimit{Rows: 1 << 20, Bytes: 1 << 30}
)

// with returns dsn with parameters of the driver, which may be settings of the
// session.
func with(t testing.TB, dsn string, params map[string]string) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Params = params
	return cfg.FormatDSN()
}

// pool opens sessions of the application's own.
func pool(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	p, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func newOutbox(t testing.TB, db *waymysql.DB, cfg outbox.Config) *outbox.Outbox[*sql.Tx] {
	t.Helper()
	types := waybill.NewTypes()
	types.AllowRaw("big")
	cfg.Serializer.Types = types
	out, err := outbox.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// put dispatches msgs in one unit of work.
func put(t testing.TB, db *waymysql.DB, msgs ...any) {
	t.Helper()
	if err := send(newOutbox(t, db, outbox.Config{}), msgs...); err != nil {
		t.Fatal(err)
	}
}

func send(out *outbox.Outbox[*sql.Tx], msgs ...any) error {
	return out.InTx(context.Background(), func(ctx context.Context, tx waymysql.Tx) error {
		_, err := out.DispatchAll(ctx, tx.SQL(), msgs...)
		return err
	})
}

func begin(t testing.TB, p *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := p.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func commit(t testing.TB, tx *sql.Tx) {
	t.Helper()
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func count(t testing.TB, db *waymysql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.Pool().QueryRowContext(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// numbers is a table whose column seq has the numbers from 1 to n.
func numbers(n int) string {
	return fmt.Sprintf("JSON_TABLE(CONCAT('[0', REPEAT(',0', %d), ']'), '$[*]' COLUMNS (seq FOR ORDINALITY))", n-1)
}

// isMariaDB reports whether the server is a MariaDB. Any other is a MySQL.
func isMariaDB(t testing.TB, dsn string) bool {
	t.Helper()
	var version string
	if err := pool(t, dsn).QueryRow("SELECT VERSION()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	return strings.Contains(version, "MariaDB")
}

// variable is the server's name for a variable tx_... of MariaDB.
func variable(t testing.TB, dsn, name string) string {
	t.Helper()
	if isMariaDB(t, dsn) {
		return name
	}
	return strings.Replace(name, "tx_", "transaction_", 1)
}

// counted is by how much do increases the sum of status counters of the server.
func counted(t testing.TB, db *waymysql.DB, do func(), counters ...string) int {
	t.Helper()
	sum := func() (all int) {
		rows, err := db.Pool().QueryContext(context.Background(), "SHOW GLOBAL STATUS WHERE variable_name IN ('"+strings.Join(counters, "', '")+"')")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		found := 0
		for rows.Next() {
			var name string
			var value int
			if err := rows.Scan(&name, &value); err != nil {
				t.Fatal(err)
			}
			found++
			all += value
		}
		if err := rows.Err(); err != nil || found != len(counters) {
			t.Fatalf("the server has %d counters of %v: %v", found, counters, err)
		}
		return all
	}
	before := sum()
	do()
	return sum() - before
}

// makeTable makes the table made anew, by statements that commit.
func makeTable(ctx context.Context, tx *sql.Tx) error {
	for _, s := range []string{"DROP TABLE IF EXISTS made", "CREATE TABLE made (n INT)"} {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// asking is held during a query for waiting sessions.
var asking sync.Mutex

// waiting is how many sessions of the database wait for a row lock. The server
// answers from a cache until 0.1 s have passed without a query. MySQL has another
// table: its innodb_trx fails where a statement has bytes that are no text.
func waiting(t testing.TB, db *waymysql.DB) int {
	t.Helper()
	if os.Getenv("WAYBILL_TEST_ON_MYSQL") != "" {
		return count(t, db, "SELECT COUNT(DISTINCT t.thread_id) FROM performance_schema.data_lock_waits AS w JOIN performance_schema.threads AS t ON t.thread_id = w.requesting_thread_id WHERE t.processlist_db = DATABASE()")
	}
	asking.Lock()
	defer asking.Unlock()
	time.Sleep(120 * time.Millisecond)
	return count(t, db, "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'")
}

// await waits for a condition.
func await(t testing.TB, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > within {
			t.Fatalf("%s: not within %v", what, within)
		}
	}
}

// recorder is a publisher that records every message that refuse does not reject.
type recorder struct {
	waytest.NoTraits
	refuse func(rec *waybill.Record) error

	mu   sync.Mutex
	got  []order
	recs []*waybill.Record
}

func (r *recorder) Publish(_ context.Context, items []outbox.Item, results chan<- outbox.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, item := range items {
		var err error
		if r.refuse != nil {
			err = r.refuse(item.Record)
		}
		if err == nil {
			r.got = append(r.got, bodyOf(item.Record))
			r.recs = append(r.recs, item.Record)
		}
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

func (r *recorder) all() []order {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func newRelay(t testing.TB, db *waymysql.DB, to outbox.Publisher, cfg outbox.RelayConfig) *outbox.Relay {
	t.Helper()
	relay, err := outbox.NewRelay(db, to, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return relay
}

// drain relays all that is due.
func drain(t testing.TB, db *waymysql.DB, to outbox.Publisher, cfg outbox.RelayConfig) {
	t.Helper()
	cfg.Drain = true
	if err := newRelay(t, db, to, cfg).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// drained relays all due messages and returns them.
func drained(t testing.TB, db *waymysql.DB) []order {
	t.Helper()
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	return sink.got
}

// relaying runs a relay until the returned function is called, or the test
// ends.
func relaying(t testing.TB, db *waymysql.DB, to outbox.Publisher, cfg outbox.RelayConfig) (stop func()) {
	t.Helper()
	relay := newRelay(t, db, to, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("relay: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// claim claims keyed rows, or, where there are none, rows without a key.
func claim(t testing.TB, db *waymysql.DB, most outbox.ClaimLimit) outbox.Claim {
	t.Helper()
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed} {
		if c := claimPart(t, db, part, most); len(c.Rows()) > 0 {
			return c
		}
	}
	return claimPart(t, db, outbox.Keyed, most)
}

func claimPart(t testing.TB, db *waymysql.DB, part outbox.Part, most outbox.ClaimLimit) outbox.Claim {
	t.Helper()
	c, err := db.Claim(context.Background(), outbox.DefaultTransport, part, most)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func settle(t testing.TB, c outbox.Claim, published []outbox.ClaimedRow, failed ...outbox.Failure) {
	t.Helper()
	if err := c.Settle(context.Background(), published, failed); err != nil {
		t.Fatal(err)
	}
}

// look claims all rows, names them, as in "a1 b1", and releases them. It sorts by
// key, because rows have an order only within a key.
func look(t testing.TB, db *waymysql.DB) string {
	t.Helper()
	all := map[string]string{}
	var claims []outbox.Claim
	for {
		c := claim(t, db, manyRows)
		if len(c.Rows()) == 0 {
			break
		}
		claims = append(claims, c)
		for _, row := range c.Rows() {
			o := bodyOf(row.Record)
			all[o.Key] += fmt.Sprint(o.Key, o.Seq, " ")
		}
	}
	for _, c := range claims {
		settle(t, c, nil)
	}
	names := ""
	for _, key := range slices.Sorted(maps.Keys(all)) {
		names += all[key]
	}
	return strings.TrimSpace(names)
}

// perKey counts the messages of each key, and fails unless they came in order.
func perKey(t testing.TB, got []order) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, o := range got {
		if o.Key != "" && o.Seq != n[o.Key] {
			t.Errorf("key %q: %d came, want %d", o.Key, o.Seq, n[o.Key])
		}
		n[o.Key]++
	}
	return n
}

// sameBucket returns n keys that share a bucket.
func sameBucket(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("s", i, "-"); outbox.Bucket(key, 64) == 7 {
			keys = append(keys, key)
		}
	}
	return keys
}

// otherBuckets returns n keys with a bucket each.
func otherBuckets(n int) (keys []string) {
	taken := map[int]bool{7: true}
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("o", i, "-")
		if b := outbox.Bucket(key, 64); !taken[b] {
			taken[b] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// client is the server's own client at work on the database of dsn.
func client(t testing.TB, address string, args ...string) *osexec.Cmd {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command("mariadb", append([]string{"--no-defaults", "--protocol=tcp", "--batch", "--skip-column-names",
		"--host=" + u.Hostname(), "--port=" + u.Port(), "--user=" + u.User.Username(), "--database=" + u.Path[1:]}, args...)...)
	if password, ok := u.User.Password(); ok {
		cmd.Env = append(cmd.Environ(), "MYSQL_PWD="+password)
	}
	return cmd
}

// needsMariaDB skips a test on MySQL. A run that does not say that it is one on MySQL fails
// instead: the usual one has MariaDB, and must not lose the test unnoticed.
func needsMariaDB(t *testing.T, dsn, why string) {
	t.Helper()
	switch {
	case isMariaDB(t, dsn):
	case os.Getenv("WAYBILL_TEST_ON_MYSQL") == "":
		t.Fatalf("the server is no MariaDB: set WAYBILL_TEST_ON_MYSQL=1 if that is meant (%s)", why)
	default:
		t.Skip(why)
	}
}
