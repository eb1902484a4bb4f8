package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waysqlite"
)

// openSQLite opens a service on the file at path, or on a new one in dir.
func openSQLite(ctx context.Context, path, dir string) (service, error) {
	db, err := openFile(ctx, path, dir)
	if err != nil {
		return nil, err
	}
	// Without a unique index on purpose: a second effect must be visible.
	if _, err := db.SQL().ExecContext(ctx, "CREATE TABLE demo_steps (n INTEGER PRIMARY KEY, order_id INTEGER NOT NULL, step INTEGER NOT NULL, message_id BLOB NOT NULL)"); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	out, err := newOutbox(db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &backend[*sql.Tx]{
		Store: db, out: out, inbox: db, name: fileDSN(db), end: db.Close,
		insert: func(ctx context.Context, tx *sql.Tx, s step) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO demo_steps (order_id, step, message_id) VALUES (?, ?, ?)", s.order, s.step, s.id)
			return err
		},
		read: func(ctx context.Context, what string) ([]step, error) { return readRows(ctx, db.ReadSQL(), what) },
	}, nil
}

func openFile(ctx context.Context, path, dir string) (*waysqlite.DB, error) {
	if path == "" {
		file, err := os.CreateTemp(dir, "*.db")
		if err != nil {
			return nil, err
		}
		path = file.Name()
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
	db, err := waysqlite.Open(ctx, path, waysqlite.Config{})
	if err != nil {
		return nil, err
	}
	if _, err = db.SchemaUp(ctx); err == nil {
		err = refuseUsed(ctx, db)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// ErrUsed says that a database given to the demo has something in it.
var ErrUsed = errors.New("the demo wants a database without messages in it, and not used by the demo before")

// refuseUsed keeps the demo away from messages that are not its own.
func refuseUsed(ctx context.Context, db *waysqlite.DB) error {
	var messages, tables int
	err := db.ReadSQL().QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM waybill_outbox) + (SELECT count(*) FROM waybill_delayed) + (SELECT count(*) FROM waybill_queue),
		(SELECT count(*) FROM sqlite_schema WHERE name LIKE 'demo\_%' ESCAPE '\')`).Scan(&messages, &tables)
	if err == nil && messages+tables > 0 {
		err = fmt.Errorf("%s: %w", db.Path(), ErrUsed)
	}
	return err
}

func fileDSN(db *waysqlite.DB) string {
	return "sqlite://" + (&url.URL{Path: db.Path()}).EscapedPath()
}

// lease is how long the broker waits for an acknowledgement.
const lease = time.Second

// fileBroker is a broker in a SQLite file: a queue.
type fileBroker struct {
	*waysqlite.Queue
	db *waysqlite.DB
}

func openFileBroker(ctx context.Context, path, dir string) (broker, error) {
	db, err := openFile(ctx, path, dir)
	if err != nil {
		return nil, err
	}
	queue, err := db.Queue(transport, waysqlite.QueueConfig{Lease: lease})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &fileBroker{queue, db}, nil
}

func (b *fileBroker) transport() string {
	return "queue://" + transport + "?database=" + url.QueryEscape(fileDSN(b.db))
}

func (b *fileBroker) waiting(ctx context.Context) (int, error) {
	queues, err := b.db.QueueStats(ctx)
	for _, q := range queues {
		if q.Queue == transport {
			return q.Pending, err
		}
	}
	return 0, err
}

func (b *fileBroker) rest(ctx context.Context) ([]waybill.MessageID, error) {
	rows, err := readRows(ctx, b.db.ReadSQL(), "SELECT 0, 0, message_id FROM waybill_queue")
	ids := make([]waybill.MessageID, len(rows))
	for i, row := range rows {
		ids[i] = row.id
	}
	return ids, err
}

// lose lets the acknowledgements of ds get lost: their leases end.
func (b *fileBroker) lose(context.Context, []*waybill.Delivery) bool { return true }

// stall keeps the broker from storing anything until proceed is called.
func (b *fileBroker) stall(ctx context.Context) (proceed func(), err error) {
	tx, err := b.db.SQL().BeginTx(ctx, nil) // has the write lock at once
	if err != nil {
		return nil, err
	}
	return func() { _ = tx.Rollback() }, nil
}

func (b *fileBroker) close() error { return b.db.Close() }
