package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli/postgres"
)

// The environment's settings of another server must not leak into a DSN.
func TestConnStringSaysAllThatTheDSNSays(t *testing.T) {
	for name, value := range map[string]string{"PGHOST": "other", "PGPORT": "1", "PGDATABASE": "other", "PGSSLMODE": "disable", "PGCONNECT_TIMEOUT": "1"} {
		t.Setenv(name, value)
	}
	for dsn, want := range map[string]struct {
		host, user, password, database string
		port                           uint16
		encrypts                       bool
	}{
		"postgres://app@db/shop": {"db", "app", "", "shop", 5432, true},
		"postgres://app@db":      {"db", "app", "", "app", 5432, true},
		"postgresql://a%40b:p%3A%2F%3F%40%25@[::1]:6000/s%20p": {"::1", "a@b", "p:/?@%", "s p", 6000, true},
		"postgres://app:@db/shop?sslmode=disable":              {"db", "app", "", "shop", 5432, false},
	} {
		text, err := postgres.ConnString(config.MustParseDSN(dsn))
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		cfg, err := pgxpool.ParseConfig(text)
		if err != nil {
			t.Errorf("%s: pgx refuses it: %v", dsn, err)
			continue
		}
		c := cfg.ConnConfig
		if c.Host != want.host || c.Port != want.port || c.User != want.user || c.Password != want.password || c.Database != want.database || (c.TLSConfig != nil) != want.encrypts {
			t.Errorf("%s: got %s:%d, user %q, password %q, database %q, TLS %t, want %+v", dsn, c.Host, c.Port, c.User, c.Password, c.Database, c.TLSConfig != nil, want)
		}
		if c.ConnectTimeout.Seconds() != 10 {
			t.Errorf("%s: connect timeout %v, want 10s", dsn, c.ConnectTimeout)
		}
	}
}

func TestConnStringRefusesFilesThatAreMissingOrAlone(t *testing.T) {
	for options, want := range map[string]string{
		"sslrootcert=nowhere.pem": "option sslrootcert: ",
		"sslcert=dsn_test.go":     "sslcert and sslkey belong together",
	} {
		_, err := postgres.ConnString(config.MustParseDSN("postgres://app:s3cr3t@db/shop?" + options))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: got %v, want an error with %q", options, err, want)
		}
	}
}
