package waymysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// A lent pool is a pool of the caller's whose DSN has settings of sessions.
type lent struct {
	t    *testing.T
	pool *sql.DB
	dsn  string
	db   *waymysql.DB
	want string // settings of every session
}

// lentConns is how many connections a lent pool may open.
const lentConns = 2

func newLent(t *testing.T) *lent {
	dsn := driverDSN(t, testserver.MariaDB(t))
	isolation := variable(t, dsn, "tx_isolation")
	l := &lent{t: t, dsn: with(t, dsn, map[string]string{
		"interpolateParams": "true", "wait_timeout": "1234", "net_read_timeout": "123", "net_write_timeout": "124", "innodb_lock_wait_timeout": "7",
		"lock_wait_timeout": "77", "group_concat_max_len": "4321", "eq_range_index_dive_limit": "3", isolation: "'SERIALIZABLE'",
	})}
	l.pool = pool(t, l.dsn)
	l.pool.SetMaxOpenConns(lentConns)
	db, err := waymysql.New(l.pool, waymysql.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.db = db
	exec(t, db, "CREATE TABLE business (text VARCHAR(100) PRIMARY KEY)")
	l.want = l.settings(pool(t, l.dsn))
	return l
}

// settings are those of a session, and whether it is in a transaction.
func (l *lent) settings(of interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) (settings string) {
	l.t.Helper()
	names := []string{"autocommit", "wait_timeout", "net_read_timeout", "net_write_timeout", "innodb_lock_wait_timeout", "lock_wait_timeout", "group_concat_max_len",
		"eq_range_index_dive_limit", "completion_type", variable(l.t, l.dsn, "tx_isolation")}
	if isMariaDB(l.t, l.dsn) {
		names = append(names, "in_transaction")
	}
	if err := of.QueryRowContext(context.Background(), "SELECT CONCAT_WS(' ', @@SESSION."+strings.Join(names, ", @@SESSION.")+")").Scan(&settings); err != nil {
		l.t.Fatal(err)
	}
	return settings
}

// check fails if a session of the pool is not as the caller's DSN made it, or does not
// commit a statement at once.
func (l *lent) check(after string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 10*time.Second)
	defer cancel()
	var all []*sql.Conn
	for range lentConns {
		conn, err := l.pool.Conn(ctx)
		if err != nil {
			l.t.Fatal(err)
		}
		defer conn.Close()
		all = append(all, conn)
	}
	other := pool(l.t, l.dsn)
	defer other.Close()
	for i, conn := range all {
		if got := l.settings(conn); got != l.want {
			l.t.Errorf("after %s a session has %s, want %s", after, got, l.want)
		}
		text, n := fmt.Sprintf("%s %d", after, i), 0
		if _, err := conn.ExecContext(ctx, "INSERT INTO business VALUES (?)", text); err != nil {
			l.t.Errorf("after %s: %v", after, err)
		}
		if err := other.QueryRow("SELECT COUNT(*) FROM business WHERE text = ?", text).Scan(&n); err != nil || n != 1 {
			l.t.Errorf("after %s a statement of the caller's is not committed: %d rows, %v", after, n, err)
		}
	}
}

// A session that has served waybill is the caller's again, as it was, whatever has happened
// in it, or it is closed.
func TestBorrowedSessionsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	l := newLent(t)
	l.check("SchemaUp")
	out := newOutbox(t, l.db, outbox.Config{})
	unit := func(fn func(ctx context.Context, tx waymysql.Tx) error) func(ctx context.Context) error {
		return func(ctx context.Context) (err error) {
			defer func() {
				if v := recover(); v != nil {
					err = fmt.Errorf("panic: %v", v)
				}
			}()
			return out.InTx(ctx, func(ctx context.Context, tx waymysql.Tx) error {
				if _, err := tx.SQL().ExecContext(ctx, "INSERT IGNORE INTO business VALUES ('row of a unit')"); err != nil {
					return err
				}
				return fn(ctx, tx)
			})
		}
	}
	run := func(statement string) func(ctx context.Context) error {
		return unit(func(ctx context.Context, tx waymysql.Tx) error {
			_, err := tx.SQL().ExecContext(ctx, statement)
			return errors.Join(err, errRefused)
		})
	}
	q, err := l.db.Queue("q", waymysql.QueueConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		fails bool
		do    func(ctx context.Context) error
	}{
		{"a unit that fails", true, unit(func(context.Context, waymysql.Tx) error { return errRefused })},
		{"a unit that panics", true, unit(func(context.Context, waymysql.Tx) error { panic("so") })},
		{"a unit that runs ROLLBACK", true, run("ROLLBACK")},
		{"a unit that locks a table", true, run("LOCK TABLES business WRITE")},
		{"a unit that changes settings", true, run("SET autocommit = 1, wait_timeout = 9")},
		{"a unit whose connection ends", true, unit(func(ctx context.Context, tx waymysql.Tx) error {
			_, err := tx.SQL().ExecContext(ctx, "KILL CONNECTION_ID()")
			return err
		})},
		{"a unit whose context ends", true, func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			return unit(func(context.Context, waymysql.Tx) error { cancel(); return nil })(ctx)
		}},
		{"a unit whose context ends in a statement", true, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			return run("DO SLEEP(5)")(ctx)
		}},
		{"a unit that dispatches", false, unit(func(ctx context.Context, tx waymysql.Tx) error {
			_, err := tx.Dispatch(ctx, order{"k", 0})
			return err
		})},
		{"a dispatch in a transaction of the caller's", false, func(ctx context.Context) error {
			tx := begin(t, l.pool)
			_, err := out.Dispatch(ctx, tx, order{"k", 1})
			return errors.Join(err, tx.Commit())
		}},
		{"a message of a queue", false, func(ctx context.Context) error {
			if err := q.Send(ctx, record(t, order{"q", 0})); err != nil {
				return err
			}
			ds, err := q.Receive(ctx, 1)
			return errors.Join(err, q.Ack(ctx, ds...))
		}},
		{"a claim that settles nothing", false, func(ctx context.Context) error {
			c := claimPart(t, l.db, outbox.Keyed, manyRows)
			if len(c.Rows()) != 2 {
				t.Errorf("%d rows claimed, want 2", len(c.Rows()))
			}
			return c.Settle(ctx, nil, nil)
		}},
		{"a claim that publishes", false, func(ctx context.Context) error {
			c := claimPart(t, l.db, outbox.Keyed, manyRows)
			return c.Settle(ctx, c.Rows(), nil)
		}},
		{"a unit that commits by DDL", true, run("CREATE TABLE made (n INT)")}, // and so its row
	} {
		if err := c.do(t.Context()); (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
		}
		l.check(c.name)
	}
	// A bug of waybill's that leaves a transaction open must not commit it.
	conn, err := l.db.UnitSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "INSERT INTO business VALUES ('left open')"); err != nil {
		t.Error(err)
	}
	_ = conn.Close()
	l.check("an open transaction")
	if n := count(t, l.db, "SELECT COUNT(*) FROM business WHERE text = 'left open'"); n != 0 {
		t.Error("it was committed")
	}
	if n := count(t, l.db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// A unit of work that the caller's pool has one connection for asks it for no other.
func TestUnitOfWorkNeedsOneSessionOfThePool(t *testing.T) {
	t.Parallel()
	l := newLent(t)
	l.pool.SetMaxOpenConns(1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	out := newOutbox(t, l.db, outbox.Config{})
	for range 3 {
		if err := out.InTx(ctx, func(ctx context.Context, tx waymysql.Tx) error {
			_, err := tx.Dispatch(ctx, order{"k", 0})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := l.pool.Stats().OpenConnections; n != 1 {
		t.Errorf("%d connections are open, want the one that came back", n)
	}
	if got := l.db.MaxConns(); got != lentConns {
		t.Errorf("MaxConns = %d, want the limit of the pool, %d", got, lentConns)
	}
	if _, err := l.db.StartRelay(ctx); err == nil || !strings.Contains(err.Error(), "SetMaxOpenConns with 6") {
		t.Errorf("a relay on one connection: %v", err)
	}
	l.pool.SetMaxOpenConns(6)
	if got := drained(t, l.db); !slices.Equal(got, []order{{"k", 0}, {"k", 0}, {"k", 0}}) {
		t.Errorf("came %v", got)
	}
	if err := l.db.Close(); err != nil {
		t.Error(err)
	}
	l.pool.SetMaxOpenConns(lentConns)
	l.check("Close")
}

// The error names the parameter that the caller's DSN lacks.
func TestNewRefusesPoolsThatItCannotUse(t *testing.T) {
	t.Parallel()
	dsn := with(t, driverDSN(t, testserver.MariaDB(t)), map[string]string{"interpolateParams": "true"})
	for name, c := range map[string]struct{ dsn, want string }{
		"prepared":      {strings.Replace(dsn, "interpolateParams=true", "interpolateParams=false", 1), "interpolateParams=true"},
		"latin1":        {dsn + "&charset=latin1", "charset=utf8mb4"},
		"no autocommit": {dsn + "&autocommit=0", "autocommit=1"},
		"chained":       {dsn + "&completion_type='CHAIN'", "completion_type=NO_CHAIN"},
		"no database":   {nameless(t, dsn), "name a database"},
		"nobody there":  {strings.Replace(dsn, "root@", "nobody:secret@", 1), "nobody"},
		"usual":         {dsn, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pool(t, c.dsn)
			_, err := waymysql.New(p, waymysql.Config{})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("New = %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error has the password: %v", err)
			}
			if n := p.Stats().InUse; n != 0 {
				t.Errorf("%d connections are kept", n)
			}
		})
	}
	if _, err := waymysql.New(nil, waymysql.Config{}); err == nil {
		t.Error("New without a pool")
	}
	db, err := waymysql.New(pool(t, dsn+"&clientFoundRows=true"), waymysql.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = db.InTx(t.Context(), func(context.Context, *sql.Tx) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "clientFoundRows=false") || errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("InTx where rows found are counted: %v", err)
	}
}

func nameless(t *testing.T, dsn string) string {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c.DBName = ""
	return c.FormatDSN()
}
