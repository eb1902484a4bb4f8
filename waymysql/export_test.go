package waymysql

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/worker"
)

// RetryQueueWithLease is RetryQueue with another lease than the default.
func (db *DB) RetryQueueWithLease(transport string, lease time.Duration) (worker.RetryQueue, error) {
	return db.retryReceiver(transport, lease)
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
func (db *DB) Examine(ctx context.Context, with sqlcore.Examination) ([]admin.Finding, error) {
	return db.examine(ctx, with)
}
