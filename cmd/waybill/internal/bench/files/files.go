package files

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	"github.com/waybill-go/waybill/waysqlite"
)

// orderPlaced is the message of all cases: 300 bytes of JSON.
type orderPlaced struct {
	OrderID    int       `json:"orderId"`
	CustomerID string    `json:"customerId"`
	PlacedAt   time.Time `json:"placedAt"`
	Freight    float64   `json:"freight"`
	City       string    `json:"city"`
	Region     *string   `json:"region"`
	Lines      []line    `json:"lines"`
}

type line struct {
	ProductID int     `json:"productId"`
	UnitPrice float64 `json:"unitPrice"`
	Quantity  int     `json:"quantity"`
}

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return m.CustomerID }

func newOrder(n int) orderPlaced {
	return orderPlaced{
		OrderID: n, CustomerID: customers[n%len(customers)], PlacedAt: time.Date(2025, 1, 6, 8, 0, 0, 0, time.UTC), Freight: 32.38, City: "Münster",
		Lines: []line{{11, 14, 12}, {42, 9.8, 10}, {72, 34.8, 5}, {14, 18.6, 9}},
	}
}

var customers = []string{"ATELI", "BLUME", "CAFEZ", "DUBLN", "ELPAN", "FJORD", "GDANS", "HAVNE", "ISTAN", "JIHLA"}

// openFile opens a database as an application does: WAL and synchronous=FULL.
func openFile(ctx context.Context, dir, name string, statements ...string) (*waysqlite.DB, error) {
	db, err := waysqlite.Open(ctx, filepath.Join(dir, name), waysqlite.Config{})
	if err != nil {
		return nil, err
	}
	if _, err := db.SchemaUp(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	for _, s := range statements {
		if _, err := db.SQL().ExecContext(ctx, s); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// empty leaves tables and write-ahead log empty, for both sides alike.
func empty(ctx context.Context, db *waysqlite.DB, tables ...string) error {
	for _, table := range tables {
		if _, err := db.SQL().ExecContext(ctx, "DELETE FROM "+table); err != nil {
			return err
		}
	}
	return checkpoint(ctx, db)
}

func checkpoint(ctx context.Context, db *waysqlite.DB) error {
	_, err := db.SQL().ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}

// fill inserts n messages into the table of an outbox or queue, with the value
// what in column.
func fill(ctx context.Context, db *waysqlite.DB, table, column string, what any, n int) error {
	body, err := json.Marshal(newOrder(0))
	if err != nil {
		return err
	}
	_, err = db.SQL().ExecContext(ctx, `
		WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1)
		INSERT INTO `+table+` (`+column+`, message_id, message_name, partition_key, headers, body, created_at)
		SELECT ?2, randomblob(16), 'order.placed', 'customer-' || (i % 100), '{}', ?3, ?4 FROM n`,
		n, what, body, time.Now().UnixMicro())
	if err != nil {
		return err
	}
	return checkpoint(ctx, db)
}

// prepare prepares statements on the pool that writes.
func prepare(ctx context.Context, db *waysqlite.DB, queries ...string) ([]*sql.Stmt, error) {
	all := make([]*sql.Stmt, len(queries))
	for i, q := range queries {
		s, err := db.SQL().PrepareContext(ctx, q)
		if err != nil {
			return nil, err
		}
		all[i] = s // closed with the pool
	}
	return all, nil
}
