package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waypg"
)

// noLanguages holds the reason why a machine may have no interpreters. CI has
// all of them.
const noLanguages = "WAYBILL_TEST_NO_LANGUAGES"

// A producer is a program of examples/other-languages. It credits an account,
// so many times, and prints the ids of its messages.
type producer struct {
	file  string
	probe string // succeeds where the program can run
	needs string // packages of Debian that make it so
	start func(file, database, account string, times int) *exec.Cmd
}

var onPostgres = []producer{
	{"postgres.sql", "psql --version", "postgresql-client", func(file, database, account string, times int) *exec.Cmd {
		args := []string{"-X", "-q", "-At", "-v", "account=" + account, database}
		for range times {
			args = append(args, "-f", file)
		}
		return exec.Command("psql", args...)
	}},
	{"postgres.php", "php -r 'new ReflectionExtension(\"pdo_pgsql\");'", "php-cli php-pgsql", func(file, database, account string, times int) *exec.Cmd {
		return php(file, "pgsql", database, account, times)
	}},
	{"postgres.py", "/usr/bin/python3 -c 'import psycopg2'", "python3-psycopg2", python},
}

var onMariaDB = []producer{
	{"mysql.sql", "mariadb --version", "mariadb-client", func(file, database, account string, times int) *exec.Cmd {
		cmd := mariadb(database)
		// Whatever the name has in it, hexadecimal digits need no quotes.
		cmd.Args = append(cmd.Args, fmt.Sprintf("--init-command=SET @account = CONVERT(X'%x' USING utf8mb4)", account))
		script, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		cmd.Stdin = strings.NewReader(strings.Repeat(string(script)+"\n", times))
		return cmd
	}},
	{"mysql.php", "php -r 'new ReflectionExtension(\"pdo_mysql\");'", "php-cli php-mysql", func(file, database, account string, times int) *exec.Cmd {
		return php(file, "mysql", database, account, times)
	}},
	{"mysql.py", "/usr/bin/python3 -c 'import pymysql'", "python3-pymysql", python},
}

func php(file, driver, database, account string, times int) *exec.Cmd {
	u, err := url.Parse(database)
	if err != nil {
		panic(err)
	}
	dsn := fmt.Sprintf("%s:host=%s;port=%s;dbname=%s;user=%s", driver, u.Hostname(), u.Port(), u.Path[1:], u.User.Username())
	if password, ok := u.User.Password(); ok {
		dsn += ";password=" + password
	}
	if driver == "mysql" {
		dsn += ";charset=utf8mb4"
	}
	cmd := exec.Command("php", file, account, fmt.Sprint(times))
	cmd.Env = append(os.Environ(), "DATABASE_DSN="+dsn)
	return cmd
}

func python(file, database, account string, times int) *exec.Cmd {
	cmd := exec.Command("/usr/bin/python3", file, account, fmt.Sprint(times)) // Debian's, which has its modules
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "PYTHONDONTWRITEBYTECODE=1")
	return cmd
}

// mariadb is the client at work on a database.
func mariadb(database string) *exec.Cmd {
	u, err := url.Parse(database)
	if err != nil {
		panic(err)
	}
	cmd := exec.Command("mariadb", "--no-defaults", "--protocol=tcp", "--batch", "--skip-column-names", "--default-character-set=utf8mb4",
		"--host="+u.Hostname(), "--port="+cmp.Or(u.Port(), "3306"), "--user="+u.User.Username(), "--database="+u.Path[1:])
	if password, ok := u.User.Password(); ok {
		cmd.Env = append(os.Environ(), "MYSQL_PWD="+password)
	}
	return cmd
}

// installed fails the test where an interpreter is missing.
func installed(t *testing.T, producers []producer) {
	t.Helper()
	for _, p := range producers {
		runnable(t, p.file, p.needs, exec.Command("sh", "-c", p.probe))
	}
}

// runnable fails the test where the probe of a program fails.
func runnable(t *testing.T, program, packages string, probe *exec.Cmd) {
	t.Helper()
	out, err := probe.CombinedOutput()
	if err == nil {
		return
	}
	if reason := os.Getenv(noLanguages); reason != "" && os.Getenv("CI") == "" {
		t.Skip(reason)
	}
	t.Fatalf("%s cannot run (%v: %v): apt-get install %s, or set %s to the reason why not\n%s", program, probe.Args, err, packages, noLanguages, out)
}

// run returns the ids of the messages that the program says it dispatched.
func (p producer) run(database, account string, times int) (ids []string, err error) {
	file, err := filepath.Abs(filepath.Join("../../../examples/other-languages", p.file))
	if err != nil {
		return nil, err
	}
	cmd := p.start(file, database, account, times)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", p.file, err, &stdout, &stderr)
	}
	return strings.Fields(stdout.String()), nil
}

// accounts are the keys of these tests. A user of the programs does not choose the
// names of customers. The last two share a bucket: without the dispatch lock a
// relay would overlook rows that are committed late.
var accounts = []string{`o'hara \x41 "\\" $1`, "zażółć 😀", "100% :account ?", "acc-7", neighbour("acc-7")}

func neighbour(account string) string {
	for i := 0; ; i++ {
		other := fmt.Sprintf("acc-%d", i)
		if other != account && outbox.Bucket(other, 64) == outbox.Bucket(account, 64) {
			return other
		}
	}
}

// credited is the message.
type credited struct {
	Account string `json:"account"`
	Balance int    `json:"balance"`
}

// books note who dispatched which message.
type books struct {
	mu sync.Mutex
	by map[string]string // id to producer
}

func (b *books) note(producer string, ids ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		b.by[id] = producer
	}
}

// everybody runs each producer on all accounts at the same time.
func everybody(t *testing.T, producers []producer, database string, times int) *books {
	t.Helper()
	b := &books{by: map[string]string{}}
	var wg sync.WaitGroup
	for _, p := range producers {
		for _, account := range accounts {
			wg.Go(func() {
				ids, err := p.run(database, account, times)
				if err != nil || len(ids) != times {
					t.Errorf("%s on %q dispatched %d messages, %v, want %d", p.file, account, len(ids), err, times)
				}
				b.note(p.file, ids...)
			})
		}
	}
	wg.Wait()
	return b
}

// judge compares the arrived messages with the dispatched ones: each message once,
// and the balances of each account as the account had them.
func (b *books) judge(t *testing.T, arrived []credit) {
	t.Helper()
	seen := map[string]bool{}
	balance := map[string]int{}
	last := map[string]string{}
	turns := 0
	for _, c := range arrived {
		by, known := b.by[c.id]
		switch {
		case !known || seen[c.id]:
			t.Errorf("%+v: known %v, seen before %v; want each message that was dispatched, once", c, known, seen[c.id])
		case c.name != "account.credited" || c.key != c.Account || c.Balance != balance[c.key]+1:
			t.Errorf("%s sent %+v, want account.credited with balance %d", by, c, balance[c.key]+1)
		case last[c.key] != by:
			turns++
		}
		seen[c.id], balance[c.key], last[c.key] = true, c.Balance, by
	}
	if len(seen) != len(b.by) {
		t.Errorf("%d messages arrived, want %d", len(seen), len(b.by))
	}
	t.Logf("%d messages, whose producers took turns %d times", len(seen), turns)
	if turns < 10*len(accounts) {
		t.Errorf("the producers took turns %d times, want that they compete", turns)
	}
}

// A credit is a message as it arrived.
type credit struct {
	credited
	id, name, key string
}

func newCredit(t *testing.T, id, name, key string, body []byte) credit {
	t.Helper()
	c := credit{id: id, name: name, key: key}
	if err := json.Unmarshal(body, &c.credited); err != nil {
		t.Errorf("body of %s: %v", id, err)
	}
	return c
}

// producersOn are those of a kind of database.
func producersOn(on *kind) []producer {
	if on == &mariaDBKind {
		return onMariaDB
	}
	return onPostgres
}

func TestOtherLanguagesKeepTheirOrderBesideGo(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		producers := producersOn(on)
		installed(t, producers)
		s := on.stack(t)
		s.openAccounts()
		s.types.AllowRaw("account.credited")
		// Commits take their time, so that they overtake each other if they can.
		if on == &mariaDBKind {
			s.exec("CREATE TRIGGER linger AFTER INSERT ON waybill_outbox FOR EACH ROW DO SLEEP(RAND() * 0.01)")
		} else {
			s.exec(`CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(random() * 0.01); RETURN NULL; END $$`)
			s.exec(`CREATE CONSTRAINT TRIGGER linger AFTER INSERT ON waybill_outbox DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW EXECUTE FUNCTION linger()`)
		}
		relays := []*running{s.patientRelay(), s.patientRelay()}
		inGo := s.creditor()

		ctx, stop := context.WithCancel(t.Context())
		byGo := &books{by: map[string]string{}}
		var wg sync.WaitGroup
		for _, account := range accounts {
			wg.Go(func() {
				for ctx.Err() == nil {
					id, err := inGo(account)
					if err != nil {
						t.Errorf("Go: %v", err)
						return
					}
					byGo.note("Go", id)
					time.Sleep(3 * time.Millisecond)
				}
			})
		}
		b := everybody(t, producers, s.database, 60)
		stop()
		wg.Wait()
		for id := range byGo.by {
			b.note("Go", id)
		}

		s.eventually(patience, "the outbox is empty", func() bool { return s.left() == 0 })
		for _, r := range relays {
			r.end()
		}
		var arrived []credit
		for {
			m, ok, err := s.ch.Get(everyone, true)
			s.must(err)
			if !ok {
				break
			}
			key, _ := m.Headers["x-partition-key"].(string)
			arrived = append(arrived, newCredit(t, m.MessageId, m.Type, key, m.Body))
		}
		b.judge(t, arrived)
		if got := s.count("SELECT sum(balance) FROM account"); got != len(arrived) {
			t.Errorf("accounts were credited %d times, and %d messages arrived", got, len(arrived))
		}
	})
}

// openAccounts makes the table that the producers write to.
func (s *stack) openAccounts(more ...string) {
	s.Helper()
	id := "varchar(255)"
	if s.on == &mariaDBKind {
		id += " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
	}
	s.exec("CREATE TABLE account (id " + id + " PRIMARY KEY, balance int NOT NULL DEFAULT 0)")
	for _, account := range append(more, accounts...) {
		s.exec("INSERT INTO account (id) VALUES (?)", account)
	}
}

// creditor returns a function that does the work of the producers in Go.
func (s *stack) creditor() func(account string) (id string, err error) {
	s.Helper()
	const update, balance = "UPDATE account SET balance = balance + 1 WHERE id = ?", "SELECT balance FROM account WHERE id = ?"
	message := func(account string, balance int) waybill.RawMessage {
		body, err := json.Marshal(credited{account, balance})
		s.must(err)
		return waybill.RawMessage{Name: "account.credited", Key: account, Body: body}
	}
	if s.out != nil { // PostgreSQL
		return func(account string) (id string, err error) {
			err = s.out.InTx(context.Background(), func(ctx context.Context, tx waypg.Tx) error {
				var n int
				if _, err := tx.SQL().Exec(ctx, numbered(update), account); err != nil {
					return err
				}
				if err := tx.SQL().QueryRow(ctx, numbered(balance), account).Scan(&n); err != nil {
					return err
				}
				got, err := tx.Dispatch(ctx, message(account, n))
				id = got.String()
				return err
			})
			return id, err
		}
	}
	out, err := outbox.New(s.db.(mariaDB).DB, outbox.Config{To: transport, Serializer: waybill.Serializer{Types: s.types}})
	s.must(err)
	return func(account string) (id string, err error) {
		err = out.InTx(context.Background(), func(ctx context.Context, tx waymysql.Tx) error {
			var n int
			if _, err := tx.SQL().ExecContext(ctx, update, account); err != nil {
				return err
			}
			if err := tx.SQL().QueryRowContext(ctx, balance, account).Scan(&n); err != nil {
				return err
			}
			got, err := tx.Dispatch(ctx, message(account, n))
			id = got.String()
			return err
		})
		return id, err
	}
}

func TestOtherLanguagesCommitBothOrNeither(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		producers := producersOn(on)
		installed(t, producers)
		s := on.stack(t)
		s.openAccounts("frozen")
		if on == &mariaDBKind { // it has no constraints that wait for COMMIT
			s.exec(`CREATE TRIGGER frozen AFTER INSERT ON waybill_outbox FOR EACH ROW
				IF NEW.partition_key = 'frozen' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the account is frozen'; END IF`)
		} else {
			s.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the account is frozen'; END $$`)
			s.exec(`CREATE CONSTRAINT TRIGGER frozen AFTER INSERT ON waybill_outbox DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW WHEN (NEW.partition_key = 'frozen') EXECUTE FUNCTION refuse()`)
		}
		for _, p := range producers {
			if ids, err := p.run(s.database, "frozen", 1); err == nil || !strings.Contains(err.Error(), "the account is frozen") {
				t.Errorf("%s = %q, %v, want the error of the server", p.file, ids, err)
			}
			ids, err := p.run(s.database, "nobody", 1)
			if len(ids) != 0 || on == &mariaDBKind && err == nil {
				t.Errorf("%s = %q, %v, want no message for an account that does not exist", p.file, ids, err)
			}
		}
		if got := s.left(); got != 0 {
			t.Errorf("%d messages of transactions that failed, want none", got)
		}
		if got := s.count("SELECT sum(balance) FROM account"); got != 0 {
			t.Errorf("accounts were credited %d times, want never", got)
		}
	})
}
