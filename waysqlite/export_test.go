package waysqlite

import (
	"time"

	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// RetryQueueWithLease is RetryQueue with another lease than the default.
func (db *DB) RetryQueueWithLease(transport string, lease time.Duration) (worker.RetryQueue, error) {
	return sqlcore.NewRetries(retryStore{db}, &db.retries, transport, lease)
}

// Keeps reports whether the statement that inserts into the outbox is prepared for later
// transactions.
func (db *DB) Keeps() bool {
	db.kept.mu.Lock()
	defer db.kept.mu.Unlock()
	return db.kept.of[db.outboxSQL.Query("insert")] != nil
}
