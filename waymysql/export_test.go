package waymysql

import (
	"time"

	"github.com/waybill-go/waybill/worker"
)

// RetryQueueWithLease is RetryQueue with another lease than the default.
func (db *DB) RetryQueueWithLease(transport string, lease time.Duration) (worker.RetryQueue, error) {
	return db.retryReceiver(transport, lease)
}
