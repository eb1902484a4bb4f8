//go:build unix

package orders_test

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"

	_ "github.com/go-sql-driver/mysql" // driver mysql
	_ "github.com/jackc/pgx/v5/stdlib" // driver pgx
	amqp "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite" // driver sqlite

	"github.com/waybill-go/waybill/examples/orders/stack"
	"github.com/waybill-go/waybill/internal/test/testserver"
)

// A fixture is the servers and files of one run.
type fixture struct {
	orders, broker, billing string  // DSNs, for the programs
	shop, bills             *sql.DB // orders and billing, for the test's own looks

	// keep selects the id of a message in the outbox, which no other session
	// can delete before the transaction ends.
	keep string
	// waiting counts the sessions of a server that wait for that transaction. It is
	// empty where there are none.
	waiting string
	// end ends these sessions, where the server would otherwise complete their
	// statements after the relay's death.
	end string
	// argument is how a query has its argument.
	argument string
	// queued counts the messages in the broker. RabbitMQ leaves out the
	// messages in flight to billing.
	queued func() (int, error)
}

// onSQLite returns a fixture of files. They are there already: two programs that
// create one at the same moment can get in each other's way.
func onSQLite(t *testing.T) *fixture {
	t.Helper()
	dir := t.TempDir()
	create := func(name string) (dsn string, look *sql.DB) {
		path := filepath.Join(dir, name)
		db, err := stack.OpenDatabase(t.Context(), "sqlite://"+path)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		return "sqlite://" + path, openDB(t, "sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	}
	p := &fixture{keep: "SELECT message_id FROM waybill_outbox WHERE id > 0 ORDER BY id LIMIT 1", argument: "?"} // only one transaction writes to a file
	p.orders, p.shop = create("orders.db")
	p.billing, p.bills = create("billing.db")
	broker, queue := create("broker.db")
	p.broker, p.queued = broker, func() (int, error) { return count(queue, "SELECT count(*) FROM waybill_queue") }
	return p
}

// onPostgres returns a fixture on PostgreSQL and RabbitMQ.
func onPostgres(t *testing.T) *fixture {
	t.Helper()
	const sessions = "FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
	orders, billing := testserver.Postgres(t), testserver.Postgres(t)
	return onRabbitMQ(t, &fixture{
		orders: orders, billing: billing,
		shop:     openDB(t, "pgx", orders),
		bills:    openDB(t, "pgx", billing),
		keep:     "SELECT message_id FROM waybill_outbox WHERE id > 0 ORDER BY id LIMIT 1 FOR UPDATE",
		waiting:  "SELECT count(*) " + sessions,
		end:      "SELECT pg_terminate_backend(pid, 10000) " + sessions, // its COMMIT is there already
		argument: "$1",
	})
}

// onMariaDB returns a fixture on MariaDB and RabbitMQ.
func onMariaDB(t *testing.T) *fixture {
	t.Helper()
	orders, billing := testserver.MariaDB(t), testserver.MariaDB(t)
	return onRabbitMQ(t, &fixture{
		orders: orders, billing: billing,
		shop:  openDB(t, "mysql", driverDSN(t, orders)),
		bills: openDB(t, "mysql", driverDSN(t, billing)),
		keep:  "SELECT message_id FROM waybill_outbox WHERE id > 0 ORDER BY id LIMIT 1 FOR UPDATE",
		waiting: `SELECT count(*) FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id
			WHERE t.trx_state = 'LOCK WAIT' AND p.db = database()`,
		argument: "?",
	})
}

// driverDSN turns mysql://USER@HOST:PORT/NAME into the driver's format.
func driverDSN(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return u.User.String() + "@tcp(" + u.Host + ")" + u.Path
}

// onRabbitMQ adds the broker to a fixture.
func onRabbitMQ(t *testing.T, p *fixture) *fixture {
	t.Helper()
	p.broker = testserver.RabbitMQ(t)
	conn, err := amqp.Dial(p.broker)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p.queued = func() (int, error) {
		ch, err := conn.Channel()
		if err != nil {
			return 0, err
		}
		defer ch.Close()
		queue, err := ch.QueueDeclarePassive("billing", true, false, false, false, nil)
		return queue.Messages, err
	}
	return p
}

// openDB opens a database for queries of the test.
func openDB(t *testing.T, driver, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func count(db *sql.DB, query string, args ...any) (n int, err error) {
	err = db.QueryRow(query, args...).Scan(&n)
	return n, err
}
