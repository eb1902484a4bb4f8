package files

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

func dispatches() []benchmark {
	return []benchmark{
		{"dispatch, 1 message", "sqlite", "tx", goal{atLeast: 0.85}, func(ctx context.Context, dir string) (*race, error) { return dispatch(ctx, dir, 1) }},
		{"dispatch, 10 messages", "sqlite", "tx", goal{atLeast: 0.85}, func(ctx context.Context, dir string) (*race, error) { return dispatch(ctx, dir, 10) }},
	}
}

const (
	ordersTable = "CREATE TABLE orders (number INTEGER PRIMARY KEY, id INTEGER NOT NULL, customer TEXT NOT NULL)"
	insertOrder = "INSERT INTO orders (id, customer) VALUES (?, ?)"
)

// dispatch compares a transaction with a business row and some messages. Both
// sides write to the same file by the same pool, and prepare their statements.
func dispatch(ctx context.Context, dir string, messages int) (*race, error) {
	db, err := openFile(ctx, dir, "orders.db", ordersTable)
	if err != nil {
		return nil, err
	}
	out, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return nil, err
	}
	var transport int64
	if err := db.SQL().QueryRowContext(ctx, "SELECT id FROM waybill_transport WHERE name = ?", outbox.DefaultTransport).Scan(&transport); err != nil {
		return nil, err
	}
	statements, err := prepare(ctx, db, insertOrder,
		"INSERT INTO waybill_outbox (transport, message_id, message_name, partition_key, headers, body, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)")
	if err != nil {
		return nil, err
	}
	order, message := statements[0], statements[1]
	const transactions = 100
	return &race{
		waybill: func(ctx context.Context) (int, error) {
			for n := range transactions {
				if err := byOutbox(ctx, out, order, newOrder(n), messages); err != nil {
					return n, err
				}
			}
			return transactions, nil
		},
		yardstick: func(ctx context.Context) (int, error) {
			for n := range transactions {
				if err := byHand(ctx, db.SQL(), order, message, transport, newOrder(n), messages); err != nil {
					return n, err
				}
			}
			return transactions, nil
		},
		pairs: 20,
		round: func(ctx context.Context) error { return empty(ctx, db, "orders", "waybill_outbox") },
		close: db.Close,
	}, nil
}

func byOutbox(ctx context.Context, out *outbox.Outbox[*sql.Tx], order *sql.Stmt, m orderPlaced, messages int) error {
	return out.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
		if _, err := tx.SQL().StmtContext(ctx, order).ExecContext(ctx, m.OrderID, m.CustomerID); err != nil {
			return err
		}
		for range messages {
			if _, err := tx.Dispatch(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

func byHand(ctx context.Context, db *sql.DB, order, message *sql.Stmt, transport int64, m orderPlaced, messages int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.StmtContext(ctx, order).ExecContext(ctx, m.OrderID, m.CustomerID); err != nil {
		return err
	}
	insert := tx.StmtContext(ctx, message)
	for range messages {
		body, err := json.Marshal(m)
		if err != nil {
			return err
		}
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		if _, err := insert.ExecContext(ctx, transport, id[:], m.MessageName(), m.PartitionKey(), "{}", body, time.Now().UnixMicro()); err != nil {
			return err
		}
	}
	return tx.Commit()
}
