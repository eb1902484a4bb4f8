package testserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/waybill-go/waybill/internal/test/testserver/port"
)

const (
	mariaVariable = "WAYBILL_TEST_MARIADB"
	mariaServers  = "/usr/sbin"
	mariaPrograms = "/usr/bin"
	mariaMissing  = "apt-get install mariadb-server, or set " + mariaVariable + " to the URL of a server on which databases may be created"
)

// newMariaDB starts a MariaDB whose user root needs no password. Its url is
// that of the database waybill. The server's environment is what env returns.
func newMariaDB(settings map[string]string, env func(*instance) ([]string, error)) (*instance, error) {
	return attempts(func() (*instance, error) {
		in, err := newInstance("mariadb", "mysql")
		if err != nil {
			return nil, err
		}
		vars, err := env(in)
		if err == nil {
			err = in.becomeMariaDB(settings, vars)
		}
		if err != nil {
			return nil, errors.Join(err, in.remove())
		}
		return in, nil
	})
}

func (in *instance) becomeMariaDB(settings map[string]string, env []string) error {
	name := "mariadbd"
	if onMySQL() {
		name = "mysqld"
	}
	server, err := program(name, mariaServers, mariaMissing)
	if err != nil {
		return err
	}
	p, err := port.Free()
	if err != nil {
		return err
	}
	data := filepath.Join(in.dir, "data")
	conf := map[string]string{
		"datadir":      data,
		"bind_address": "127.0.0.1",
		"port":         fmt.Sprint(p),
		"socket":       filepath.Join(in.dir, "mariadb.sock"),
		"pid_file":     filepath.Join(in.dir, "mariadb.pid"),
		"tmpdir":       in.dir,
		// A client is who it says it is; names are not looked up.
		"skip_name_resolve": "ON",
		// Small, so that a start takes a second. Acknowledged commits are on disk.
		"innodb_buffer_pool_size":        "64M",
		"innodb_log_file_size":           "32M",
		"innodb_flush_log_at_trx_commit": "1",
		// As the packages of distributions have it; without, it were latin1.
		"character_set_server": "utf8mb4",
	}
	create := in.createMariaDB
	if onMySQL() {
		delete(conf, "innodb_log_file_size")
		conf["innodb_redo_log_capacity"], conf["mysqlx"] = "32M", "OFF"
		create = in.createMySQL
	}
	// The last line counts, whichever of - and _ it is spelled with.
	file, err := in.write("my.cnf", "[mysqld]\n"+lines(conf)+lines(settings))
	if err != nil {
		return err
	}
	if err := create(file, data); err != nil {
		return err
	}
	in.url = fmt.Sprintf("mysql://root@127.0.0.1:%d/waybill", p)
	in.commands = []command{{
		path: server,
		args: []string{"--defaults-file=" + file},
		env:  env,
		quit: syscall.SIGTERM,
		answers: func() error {
			if err := dial(p); err != nil { // costs less than the client
				return err
			}
			_, err := mariadb(in.url, "SELECT 1")
			return err
		},
	}}
	return in.start()
}

// createMariaDB makes the directory data of a server with the option file, and
// in it the database waybill.
func (in *instance) createMariaDB(file, data string) error {
	install, err := program("mariadb-install-db", mariaPrograms, mariaMissing)
	if err != nil {
		return err
	}
	create := in.command(command{path: install, args: []string{
		"--defaults-file=" + file, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"}})
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", install, err, out)
	}
	// A directory is a database. CREATE DATABASE would be refused where the
	// settings make the server read-only or a node without a cluster.
	database := filepath.Join(data, "waybill")
	return errors.Join(os.Mkdir(database, 0o700), own(in.as, database))
}

// plain is the environment of a server as it is.
func plain(*instance) ([]string, error) { return nil, nil }

// mariadb runs statements, which // separates, and returns the rows, one a
// line. Like psql it is a process of the server's own, and no library.
func mariadb(dsn, statements string) (string, error) {
	args, env, err := mariaClient(dsn)
	if err != nil {
		return "", err
	}
	path, err := program("mariadb", mariaPrograms, "apt-get install mariadb-client")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute) // MySQL may take one to drop hundreds of tables
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append(args, "--delimiter=//", "-e", statements)...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("mariadb: %w\n%s", err, &stderr)
	}
	return strings.TrimSpace(string(out)), nil
}

// mariaClient returns the arguments and the environment of a client for the server
// of dsn. The password is not in the arguments, which other users can read.
func mariaClient(dsn string) (args, env []string, err error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "mysql" && u.Scheme != "mariadb" || u.Hostname() == "" {
		return nil, nil, errors.New("the DSN is not a URL with the scheme mysql")
	}
	args = []string{"--no-defaults", "--protocol=tcp", "--connect-timeout=10", "--batch", "--skip-column-names", "--default-character-set=utf8mb4",
		"--host=" + u.Hostname(), "--user=" + u.User.Username(), "--database=" + strings.TrimPrefix(u.Path, "/")}
	if at := u.Port(); at != "" {
		args = append(args, "--port="+at)
	}
	if password, ok := u.User.Password(); ok {
		env = append(env, "MYSQL_PWD="+password)
	}
	return args, env, nil
}

// dropMariaDB drops a database and ends its sessions. A transaction that is still
// open would hold up DROP DATABASE for a day.
func dropMariaDB(dsn, name string) error {
	end := fmt.Sprintf(`
BEGIN NOT ATOMIC
	DECLARE CONTINUE HANDLER FOR 1094 BEGIN END; -- it left by itself
	FOR session IN (SELECT id FROM information_schema.processlist WHERE db = '%s') DO
		KILL session.id;
	END FOR;
END//
`, name)
	if onMySQL() {
		if err := endMySQLSessions(dsn, name); err != nil {
			return err
		}
		end = ""
	}
	_, err := mariadb(dsn, end+"SET lock_wait_timeout = 30//\nDROP DATABASE "+name)
	return err
}
