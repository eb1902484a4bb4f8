package waypg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// Ping is the keep-alive of a unit's transaction, now.
func Ping(ctx context.Context, tx pgx.Tx) { tx.(*unitTx).unit.ping(ctx) }

// SetHeartbeat gives the listener of a DB that does not relay yet a shorter
// heartbeat than five seconds.
func (db *DB) SetHeartbeat(d time.Duration) { db.listener.heartbeat = d }

// SetNotifyEvery gives the notifier of a DB that has committed nothing yet
// another window than ten milliseconds.
func (db *DB) SetNotifyEvery(d time.Duration) { db.notifier.every = d }

// RetryQueueWithLease is RetryQueue with another lease than the default.
func (db *DB) RetryQueueWithLease(transport string, lease time.Duration) (worker.RetryQueue, error) {
	return db.retryQueue(transport, lease)
}

// QueueWake returns the channel that ends the pauses of a queue's receivers.
func (db *DB) QueueWake(queue string) <-chan struct{} { return db.wakes.Queue(queue) }

// Examine is Findings with limits of the test's.
func (db *DB) Examine(ctx context.Context, with sqlcore.Examination) ([]admin.Finding, error) {
	return db.examine(ctx, with)
}
