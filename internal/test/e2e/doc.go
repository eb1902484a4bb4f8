// Package e2e holds tests of the whole way from a transaction in PostgreSQL or
// MariaDB to a queue of RabbitMQ, with real servers, under faults that are
// injected at exact places. Each runs on both databases: a kind has the
// differences. The results are judged at the queue, by a client that knows nothing
// of waybill. Without -long some of them strike less often.
package e2e
