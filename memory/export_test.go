package memory

import (
	"cmp"
	"time"

	"github.com/waybill-go/waybill/worker"
)

// QueueWithLease is Queue with another lease than the default, which is that of zero.
func (db *DB) QueueWithLease(name string, lease time.Duration) *Queue {
	return db.receiver(name, cmp.Or(lease, defaultLease))
}

// RetryQueueWithLease is RetryQueue likewise.
func (db *DB) RetryQueueWithLease(transport string, lease time.Duration) worker.RetryQueue {
	return db.retryQueue(transport, cmp.Or(lease, defaultLease))
}
