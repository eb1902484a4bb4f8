package testserver

import (
	"net/url"
	"os"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	one, two := Postgres(t), Postgres(t)
	for _, dsn := range []string{one, two} {
		if err := psql(dsn, "CREATE TABLE thing (id int)"); err != nil {
			t.Errorf("the database is not empty or not ours: %v", err)
		}
	}
}

func TestDatabaseIsDroppedUnderTheFeetOfItsClients(t *testing.T) {
	t.Parallel()
	var dsn string
	t.Run("inner", func(t *testing.T) {
		dsn = Postgres(t)
		session(t, dsn)
	})
	if err := psql(dsn, "SELECT 1"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("connecting to the database of a test that ended = %v, want that it does not exist", err)
	}
}

func TestEachTestHasAMariaDBDatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	one, two := MariaDB(t), MariaDB(t)
	for _, dsn := range []string{one, two} {
		if _, err := mariadb(dsn, "CREATE TABLE thing (id int)"); err != nil {
			t.Errorf("the database is not empty or not ours: %v", err)
		}
	}
}

func TestMariaDBDatabaseIsDroppedUnderTheFeetOfItsClients(t *testing.T) {
	t.Parallel()
	var dsn string
	t.Run("inner", func(t *testing.T) {
		dsn = MariaDB(t)
		rows(t, dsn, "CREATE TABLE thing (id int)")
		mariaSession(t, dsn, "BEGIN// INSERT INTO thing VALUES (7)")
	})
	if _, err := mariadb(dsn, "SELECT 1"); err == nil || !strings.Contains(err.Error(), "Unknown database") {
		t.Errorf("connecting to the database of a test that ended = %v, want that it does not exist", err)
	}
}

func TestEachTestHasAVirtualHostOfItsOwn(t *testing.T) {
	t.Parallel()
	one, two := RabbitMQ(t), RabbitMQ(t)
	channel(t, one)
	declare(t, one, "things")
	if _, err := channel(t, two).QueueDeclarePassive("things", true, false, false, false, nil); err == nil {
		t.Error("a queue of one virtual host is found in another")
	}
}

func TestVirtualHostIsGoneAfterTheTest(t *testing.T) {
	t.Parallel()
	var dsn string
	t.Run("inner", func(t *testing.T) { dsn = RabbitMQ(t) })
	if conn, err := amqp.Dial(dsn); err == nil {
		conn.Close()
		t.Error("the virtual host of a test that ended is still there")
	}
}

func TestEnvironmentNamesTheServers(t *testing.T) {
	env, end, err := Share()
	_ = end // the other tests still need the servers
	if err != nil {
		t.Fatal(err)
	}
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		if u, err := url.Parse(value); err != nil || u.Port() == "" {
			t.Errorf("%s = %q, want a URL with a port", name, value)
		}
		if set := os.Getenv(name); set != "" && set != value {
			t.Errorf("%s = %q, want %q as the environment says", name, value, set)
		}
	}
}

func TestMissingProgramIsAnErrorThatSaysWhatToInstall(t *testing.T) {
	_, err := program("no-such-server", "/usr/lib/none/*/bin", postgresMissing)
	if err == nil || !strings.Contains(err.Error(), "apt-get install postgresql") || !strings.Contains(err.Error(), postgresVariable) {
		t.Errorf("error = %v, want what to install and what to set", err)
	}
}

func channel(t *testing.T, dsn string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func declare(t *testing.T, dsn, queue string) *amqp.Channel {
	t.Helper()
	ch := channel(t, dsn)
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return ch
}
