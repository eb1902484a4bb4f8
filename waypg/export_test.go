package waypg

import (
	"context"
	"strings"
	"time"

	"github.com/gofrs/uuid/v5"
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
	return sqlcore.NewRetries(retryStore{db}, &db.retries, transport, lease)
}

// QueueWake returns the channel that ends the pauses of a queue's receivers.
func (db *DB) QueueWake(queue string) <-chan struct{} { return db.wakes.Queue(queue) }

// Examine is Findings with limits of the test's.
func (db *DB) Examine(ctx context.Context, with admin.Examination) ([]admin.Finding, error) {
	return db.examine(ctx, with)
}

// PlanOf returns the plan of a statement of Settle, under the settings of a claim.
func (db *DB) PlanOf(ctx context.Context, statement string, args ...any) (plan string, err error) {
	at, err := db.ensureSchema(ctx)
	if err != nil {
		return "", err
	}
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, at.outbox.Query("settings"), "30s", int16(1)); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "EXPLAIN "+at.settle.Query(statement), args...)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan = strings.Join(lines, "\n")
		return err
	})
	return plan, err
}

// HoldTurn begins a claim of a queue, and is silent until over.
func (db *DB) HoldTurn(queue string, begun chan<- error, over <-chan struct{}) error {
	to := sqlcore.Consumer{Queue: queue, Turn: "queue " + queue, Holder: uuid.Must(uuid.NewV4()), Lease: time.Hour}
	return queueStore{db}.Claim(context.Background(), to, func(ctx context.Context, c sqlcore.QueueClaim) error {
		_, err := c.Read(ctx, 1, 1)
		begun <- err
		<-over
		return err
	})
}

// HoldLock runs a statement in a transaction of waybill's own, and is silent until over.
func (db *DB) HoldLock(statement string, begun chan<- error, over <-chan struct{}) error {
	return db.inTx(context.Background(), func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), statement)
		begun <- err
		<-over
		return err
	})
}

// HoldRetry is HoldLock in the transaction of RetryFailed.
func (db *DB) HoldRetry(statement string, begun chan<- error, over <-chan struct{}) error {
	return db.dispatchAgain(context.Background(), func(ctx context.Context, tx sqlcore.OperatorTx) error {
		_, err := tx.(operatorTx).tx.Exec(ctx, statement)
		begun <- err
		<-over
		return err
	})
}
