package testserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/waybill-go/waybill/internal/test/testserver/port"
)

const (
	postgresVariable = "WAYBILL_TEST_POSTGRES"
	postgresPrograms = "/usr/lib/postgresql/*/bin"
	postgresMissing  = "apt-get install postgresql, or set " + postgresVariable + " to the URL of a server on which databases may be created"
)

// newPostgres starts a PostgreSQL whose one user is waybill and needs no
// password. Its url is that of the database postgres.
func newPostgres(settings map[string]string) (*instance, error) {
	return attempts(func() (*instance, error) {
		in, err := newInstance("postgres", "postgres")
		if err != nil {
			return nil, err
		}
		if err := in.becomePostgres(settings); err != nil {
			return nil, errors.Join(err, in.remove())
		}
		return in, nil
	})
}

func (in *instance) becomePostgres(settings map[string]string) error {
	initdb, err := program("initdb", postgresPrograms, postgresMissing)
	if err != nil {
		return err
	}
	postgres, err := program("postgres", postgresPrograms, postgresMissing)
	if err != nil {
		return err
	}
	p, err := port.Free()
	if err != nil {
		return err
	}
	data := filepath.Join(in.dir, "data")
	create := in.command(command{path: initdb, args: []string{
		"-D", data, "-U", "waybill", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"}})
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", initdb, err, out)
	}
	conf := map[string]string{
		"listen_addresses":        "'127.0.0.1'",
		"port":                    fmt.Sprint(p),
		"unix_socket_directories": "'" + in.dir + "'",
		// In the data directory, so that kill -9 leaves nothing in /dev/shm.
		"dynamic_shared_memory_type": "mmap",
	}
	maps.Copy(conf, settings)
	if err := appendLines(filepath.Join(data, "postgresql.conf"), lines(conf)); err != nil {
		return err
	}
	in.url = fmt.Sprintf("postgres://waybill@127.0.0.1:%d/postgres?sslmode=disable", p)
	in.commands = []command{{
		path: postgres,
		args: []string{"-D", data},
		quit: syscall.SIGINT, // PostgreSQL calls it a fast shutdown
		answers: func() error {
			if err := dial(p); err != nil { // costs less than psql
				return err
			}
			return psql(in.url, "SELECT 1")
		},
	}}
	return in.start()
}

// psql runs one statement. It is a process of PostgreSQL's own, so that this
// package needs no client library and can speak to any server it is pointed at.
func psql(dsn, statement string) error {
	path, err := program("psql", postgresPrograms, "apt-get install postgresql-client")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-X", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-c", statement, dsn)
	cmd.Env = append(os.Environ(), "PGCONNECT_TIMEOUT=10")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("psql: %w\n%s", err, out)
	}
	return nil
}

// lines returns settings as a configuration file holds them, in a fixed order.
func lines(settings map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = %s\n", key, settings[key])
	}
	return b.String()
}

func appendLines(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// removeAll removes the directory of a server that does not run. A PostgreSQL
// that was killed also leaves a segment of shared memory, which only its next
// start or ipcrm removes; postmaster.pid names it.
func removeAll(dir string) error {
	if b, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid")); err == nil {
		if line := strings.Split(string(b), "\n"); len(line) > 6 {
			if key := strings.Fields(line[6]); len(key) == 2 {
				_ = exec.Command("ipcrm", "-m", key[1]).Run()
			}
		}
	}
	return os.RemoveAll(dir)
}
