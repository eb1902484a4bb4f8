// Package testserver gives tests private servers: PostgreSQL, MariaDB, RabbitMQ
// and PgBouncer from the system's packages, in temporary directories, on free
// ports of the loopback interface.
//
// [Postgres], [MariaDB] and [RabbitMQ] serve most tests: each call makes a private
// database or virtual host, in milliseconds, on a server that the whole process
// shares. The server is the one that the environment names
// (WAYBILL_TEST_POSTGRES, WAYBILL_TEST_MARIADB, WAYBILL_TEST_RABBITMQ),
// otherwise the first use starts it; the command internal/test/testserver/run starts
// one for all packages of a go test. Tests that kill, stop or freeze a server
// start their own with [StartPostgres], [StartMariaDB] and [StartRabbitMQ].
//
// A missing server fails the test with the words that mend it; nothing is
// skipped and nothing is installed.
//
// Servers and their directories end with the process that started them,
// however that ends: next to each sits a watcher, which is the same executable
// started again (see watch.go).
package testserver
