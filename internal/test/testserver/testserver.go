package testserver

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// Postgres returns the DSN of an empty database of tb's own, dropped when tb
// ends, even with open connections. It is a URL:
// postgres://user@127.0.0.1:PORT/NAME?sslmode=disable.
func Postgres(tb testing.TB) string {
	tb.Helper()
	server, err := sharedPostgres()
	if err != nil {
		tb.Fatalf("testserver: PostgreSQL: %v", err)
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		tb.Fatalf("testserver: %s is not a URL postgres://...", postgresVariable)
	}
	name := fresh()
	if err := psql(server, "CREATE DATABASE "+name); err != nil {
		tb.Fatalf("testserver: PostgreSQL: %v", err)
	}
	tb.Cleanup(func() {
		if err := psql(server, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			tb.Errorf("testserver: PostgreSQL: %v", err)
		}
	})
	u.Path = "/" + name
	return u.String()
}

// MariaDB returns the DSN of an empty database of tb's own, dropped when tb
// ends, even with open connections. It is a URL as waybill takes it, not that
// of the Go driver: mysql://user@127.0.0.1:PORT/NAME.
func MariaDB(tb testing.TB) string {
	tb.Helper()
	server, err := sharedMariaDB()
	if err != nil {
		tb.Fatalf("testserver: MariaDB: %v", err)
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "mysql" && u.Scheme != "mariadb" {
		tb.Fatalf("testserver: %s is not a URL mysql://...", mariaVariable)
	}
	name := fresh()
	if _, err := mariadb(server, "CREATE DATABASE "+name+" CHARACTER SET utf8mb4"); err != nil {
		tb.Fatalf("testserver: MariaDB: %v", err)
	}
	tb.Cleanup(func() {
		if err := dropMariaDB(server, name); err != nil {
			tb.Errorf("testserver: MariaDB: %v", err)
		}
	})
	u.Path = "/" + name
	return u.String()
}

// RabbitMQ returns the URL of an empty virtual host of tb's own, deleted when
// tb ends: amqp://user:password@127.0.0.1:PORT/VHOST.
func RabbitMQ(tb testing.TB) string {
	tb.Helper()
	server, err := sharedRabbitMQ()
	if err != nil {
		tb.Fatalf("testserver: RabbitMQ: %v", err)
	}
	u, err := url.Parse(server.url)
	if err != nil || !strings.HasPrefix(u.Scheme, "amqp") || u.User == nil {
		tb.Fatalf("testserver: %s is not a URL amqp://user:password@...", rabbitVariable)
	}
	name := fresh()
	host := "/api/vhosts/" + name
	if err := manage(server.api, "PUT", host, ""); err != nil {
		tb.Fatalf("testserver: RabbitMQ: %v\n(its management plugin must be enabled, see %s)", err, rabbitAPIVariable)
	}
	tb.Cleanup(func() {
		if err := manage(server.api, "DELETE", host, ""); err != nil {
			tb.Errorf("testserver: RabbitMQ: %v", err)
		}
	})
	everything := `{"configure":".*","write":".*","read":".*"}`
	permission := fmt.Sprintf("/api/permissions/%s/%s", name, url.PathEscape(u.User.Username()))
	if err := manage(server.api, "PUT", permission, everything); err != nil {
		tb.Fatalf("testserver: RabbitMQ: %v", err)
	}
	u.Path = "/" + name
	return u.String()
}

// fresh returns a name that no other test has, on whatever machine it runs.
func fresh() string { return "waybill_" + strings.ToLower(rand.Text()) }
