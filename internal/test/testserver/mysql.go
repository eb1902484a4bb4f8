package testserver

import (
	"fmt"
	"os"
	"strings"
)

// onMySQL reports whether the run is one on MySQL, whose server then takes the place of
// MariaDB's. Debian's packages of both exclude each other.
func onMySQL() bool { return os.Getenv("WAYBILL_TEST_ON_MYSQL") != "" }

// createMySQL is createMariaDB for MySQL. Settings may break the initialization,
// which therefore reads no option file.
func (in *instance) createMySQL(_, data string) error {
	server, err := program("mysqld", mariaServers, mariaMissing)
	if err != nil {
		return err
	}
	// Without name lookup a client of 127.0.0.1 is not one of localhost.
	statements, err := in.write("create.sql", "CREATE USER root@'127.0.0.1';\n"+
		"GRANT ALL PRIVILEGES ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"+
		"CREATE DATABASE waybill CHARACTER SET utf8mb4;\n")
	if err != nil {
		return err
	}
	create := in.command(command{path: server, args: []string{"--no-defaults", "--datadir=" + data, "--initialize-insecure",
		"--init-file=" + statements, "--character-set-server=utf8mb4", "--innodb-redo-log-capacity=32M", "--innodb-data-file-path=ibdata1:8M:autoextend"}})
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", server, err, out)
	}
	return nil
}

// endMySQLSessions ends the sessions of a database. MySQL has compound statements in
// procedures only.
func endMySQLSessions(dsn, name string) error {
	ids, err := mariadb(dsn, "SELECT id FROM performance_schema.processlist WHERE db = '"+name+"'")
	for _, id := range strings.Fields(ids) {
		_, _ = mariadb(dsn, "KILL "+id) // an error says that it left by itself
	}
	return err
}
