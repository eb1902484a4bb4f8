// Package chaos holds the process campaign: applications, relays and workers, a
// process each, on PostgreSQL or MariaDB and RabbitMQ, that are killed, frozen
// and cut off by a seeded schedule while their servers are killed too. A checker
// then compares the committed messages with the messages in the broker and with the
// effects. It has the build tag chaos, so that no other test run includes it.
//
// `make chaos` runs it in full; `make test` runs a short form.
package chaos
