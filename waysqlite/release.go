package waysqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// releaseBatch bounds the rows and the entries of one transaction of a release, so
// that writers wait for milliseconds.
const releaseBatch = 250

// An entry blocks a key, or a row without a key.
type entry struct {
	transport int64
	name      string // of the transport
	key       string
	row       int64
}

// Release implements admin.Database. There are no blocked routes here.
func (db *DB) Release(ctx context.Context, q admin.BlockedQuery) (released int, err error) {
	if q.Route != "" {
		return 0, nil
	}
	entries, err := query(ctx, db, db.adminSQL.Query("release_list"), func(rows *sql.Rows, e *entry) error {
		return rows.Scan(&e.transport, &e.name, &e.key, &e.row)
	}, q.Transport, q.Key, q.Row)
	for err == nil && len(entries) > 0 {
		b := releasing{DB: db, skipHead: q.SkipHead}
		err = db.write(ctx, func(tx *txn) error {
			if err := b.release(ctx, tx, entries); err != nil || b.released == 0 {
				return err
			}
			return sqlcore.Audit(ctx, operatorTx{db, tx}, "outbox release", q, b.released)
		})
		if err == nil {
			entries, released = entries[b.done:], released+b.released
		}
	}
	if err != nil {
		return released, fmt.Errorf("outbox release: %w", err)
	}
	return released, nil
}

// releasing is one transaction of a release.
type releasing struct {
	*DB
	skipHead       bool
	done, released int // entries
}

// release handles up to releaseBatch entries, in order.
func (b *releasing) release(ctx context.Context, tx *txn, entries []entry) error {
	moved := 0
	changed := map[int64]string{} // transports
	for _, e := range entries[:min(len(entries), releaseBatch)] {
		ended, n, err := b.one(ctx, tx, e, releaseBatch-moved)
		if err != nil {
			return err
		}
		moved += n
		if moved == releaseBatch {
			break // the key stays blocked until its last row is back
		}
		b.done++
		if ended {
			changed[e.transport] = e.name
		}
	}
	for id, name := range changed {
		if _, err := tx.exec(ctx, b.outboxSQL.Query("bump"), id); err != nil {
			return err
		}
		b.wakes.Hint(name)
	}
	return nil
}

// one makes an entry due, or brings back up to max rows of its key that were set
// aside and, after the last one, ends the entry. moved is the number of rows
// brought back.
func (b *releasing) one(ctx context.Context, tx *txn, e entry, max int) (ended bool, moved int, err error) {
	if b.skipHead {
		if err := b.skip(ctx, tx, e.row); err != nil {
			return false, 0, err
		}
	} else if n, err := tx.exec(ctx, b.adminSQL.Query("hurry"), e.transport, e.key, e.row); err != nil || n > 0 {
		b.released += n
		return false, 0, err
	}
	moved, err = tx.exec(ctx, b.adminSQL.Query("bring_back"), e.transport, e.key, max)
	if err != nil || moved == max {
		return false, moved, err
	}
	n, err := tx.exec(ctx, b.outboxSQL.Query("unblock"), e.transport, e.key, e.row)
	b.released += n
	return n > 0, moved, err
}
