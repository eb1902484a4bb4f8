package testserver

import (
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/waybill-go/waybill/internal/test/testserver/port"
)

// StartPgBouncer starts a PgBouncer with a pool_mode, without support for
// prepared statements, in front of the server of dsn, and returns dsn as it is
// reached through it. It ends with tb.
func StartPgBouncer(tb testing.TB, dsn, mode string) string {
	tb.Helper()
	in, err := attempts(func() (*instance, error) { return newPgBouncer(dsn, mode) })
	if err != nil {
		tb.Fatalf("testserver: PgBouncer: %v", err)
	}
	return serve(tb, in).URL()
}

func newPgBouncer(dsn, mode string) (*instance, error) {
	in, err := newInstance("pgbouncer", "postgres")
	if err != nil {
		return nil, err
	}
	if err := in.becomePgBouncer(dsn, mode); err != nil {
		return nil, errors.Join(err, in.remove())
	}
	return in, nil
}

func (in *instance) becomePgBouncer(dsn, mode string) error {
	bouncer, err := program("pgbouncer", "/usr/sbin", "apt-get install pgbouncer")
	if err != nil {
		return err
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return errors.New("the DSN is not a URL")
	}
	p, err := port.Free()
	if err != nil {
		return err
	}
	conf := map[string]string{
		"listen_addr":               "127.0.0.1",
		"listen_port":               fmt.Sprint(p),
		"unix_socket_dir":           "",
		"auth_type":                 "any",
		"pool_mode":                 mode,
		"max_client_conn":           "500",
		"default_pool_size":         "20",
		"ignore_startup_parameters": "extra_float_digits",
	}
	if supportsPrepared(bouncer) {
		conf["max_prepared_statements"] = "0"
	}
	file, err := in.write("pgbouncer.ini", "[databases]\n* = "+behind(u)+"\n[pgbouncer]\n"+lines(conf))
	if err != nil {
		return err
	}
	u.Host = fmt.Sprintf("127.0.0.1:%d", p)
	in.url = u.String()
	in.commands = []command{{
		path:    bouncer,
		args:    []string{file},
		quit:    syscall.SIGINT,
		answers: func() error { return psql(in.url, "SELECT 1") },
	}}
	return in.start()
}

// behind says to PgBouncer how it reaches the server of u.
func behind(u *url.URL) string {
	host, at := u.Hostname(), u.Port()
	if at == "" {
		at = "5432"
	}
	s := fmt.Sprintf("host=%s port=%s user=%s", host, at, u.User.Username())
	if password, ok := u.User.Password(); ok {
		s += " password='" + strings.ReplaceAll(password, "'", "''") + "'"
	}
	return s
}

// supportsPrepared reports whether this PgBouncer is 1.21 or later, which knows
// prepared statements and by now tracks them unless told not to. Earlier ones
// reject the setting.
func supportsPrepared(bouncer string) bool {
	out, err := exec.Command(bouncer, "-V").Output()
	var major, minor int
	_, _ = fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor)
	return err == nil && (major > 1 || minor >= 21)
}
