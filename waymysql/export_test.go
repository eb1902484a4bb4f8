package waymysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// RetryQueueWithLease is RetryQueue with another lease than the default.
func (db *DB) RetryQueueWithLease(transport string, lease time.Duration) (worker.RetryQueue, error) {
	return sqlcore.NewRetries(retryStore{db}, &db.retries, transport, lease)
}

// UnitSession returns a session of a unit of work, without its transaction.
func (db *DB) UnitSession(ctx context.Context) (*sql.Conn, error) { return db.units.Conn(ctx) }

// WithoutCompounds makes a DB send statements one by one, as on MySQL.
func (db *DB) WithoutCompounds(ctx context.Context) error {
	_, err := db.relayPool(ctx) // its sessions have the settings of the server that it is
	db.mu.Lock()
	defer db.mu.Unlock()
	db.flavor.mariaDB = false
	return err
}

// Examine is Findings with limits of the test's.
func (db *DB) Examine(ctx context.Context, with admin.Examination) ([]admin.Finding, error) {
	return db.examine(ctx, with)
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
	return db.inTx(context.Background(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(context.Background(), statement)
		begun <- err
		<-over
		return err
	})
}

// HoldMigration is HoldLock in the session of a migration or rebucket.
func (db *DB) HoldMigration(statement string, begun chan<- error, over <-chan struct{}) error {
	conn, release, err := db.oneMigrator(context.Background())
	if err != nil {
		begun <- err
		return err
	}
	defer release()
	return transact(context.Background(), conn, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(context.Background(), statement)
		begun <- err
		<-over
		return err
	})
}
