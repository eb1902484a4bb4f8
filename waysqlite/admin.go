package waysqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// query runs a statement of an operator's and scans each row.
func query[T any](ctx context.Context, db *DB, text string, scan func(*sql.Rows, *T) error, args ...any) ([]T, error) {
	rows, err := db.readRows(ctx, text, args...)
	if err != nil {
		return nil, translate(err)
	}
	defer func() { _ = rows.Close() }()
	found := []T{} // [] and not null in JSON
	for rows.Next() {
		var one T
		if err := scan(rows, &one); err != nil {
			return nil, err
		}
		found = append(found, one)
	}
	return found, translate(rows.Err())
}

// Outbox implements admin.Database: pending messages first, then delayed ones.
func (db *DB) Outbox(ctx context.Context, q admin.OutboxQuery) ([]admin.OutboxMessage, error) {
	scan := func(rows *sql.Rows, m *admin.OutboxMessage) error {
		var created int64
		var due sql.NullInt64
		err := rows.Scan(&m.Row, &m.Transport, &m.Name, &m.Key, &m.ID, &created, &due, &m.Bytes, &m.Blocked)
		m.CreatedAt, m.DueAt = micros(created), microsOrNil(due)
		return err
	}
	limit := cmp.Or(q.Limit, -1)
	found, err := []admin.OutboxMessage{}, error(nil)
	pending, delayedToo := q.Parts()
	if pending {
		after, _ := q.Rows() // one table has both
		found, err = query(ctx, db, db.adminSQL.Query("outbox_list"), scan, q.Transport, q.Key, q.Name, after, limit)
	}
	if err != nil || !delayedToo || limit > 0 && len(found) >= limit {
		return found, err
	}
	if limit > 0 {
		limit -= len(found)
	}
	due, row := q.Delayed()
	delayed, err := query(ctx, db, db.adminSQL.Query("delayed_list"), scan, q.Transport, q.Key, q.Name, due.UnixMicro(), row, limit)
	return append(found, delayed...), err
}

// Blocked implements admin.Database.
func (db *DB) Blocked(ctx context.Context, transport string, limit int) ([]admin.BlockedKey, error) {
	return query(ctx, db, db.adminSQL.Query("blocked"), scanBlocked, transport, cmp.Or(limit, -1))
}

// BlockedKeys implements admin.Database.
func (db *DB) BlockedKeys(ctx context.Context, q admin.BlockedKeysQuery) ([]admin.BlockedKey, error) {
	after := make([]any, 4)
	if a := q.After; a != nil {
		after = []any{a.FirstFailedAt.UnixMicro(), a.Key, a.Transport, a.Row}
	}
	args := append([]any{q.Transport, q.Key}, append(after, cmp.Or(q.Limit, -1))...)
	return query(ctx, db, db.adminSQL.Query("blocked_keys"), scanBlocked, args...)
}

func scanBlocked(rows *sql.Rows, b *admin.BlockedKey) error {
	var first int64
	var next sql.NullInt64
	err := rows.Scan(&b.Transport, &b.Key, &b.Row, &b.HeadID, &b.HeadName, &b.Failures, &first, &next, &b.LastError, &b.State, &b.Policy, &b.Waiting, &b.Parked)
	b.FirstFailedAt, b.NextAttemptAt = micros(first), microsOrNil(next)
	return err
}

// Relays implements admin.Database: relays of a file keep no reports.
func (db *DB) Relays(context.Context) ([]admin.Relay, error) { return []admin.Relay{}, nil }

// OutboxStats implements admin.Database.
func (db *DB) OutboxStats(ctx context.Context) ([]admin.OutboxStats, error) {
	return query(ctx, db, db.adminSQL.Query("outbox_stats"), func(rows *sql.Rows, s *admin.OutboxStats) error {
		var oldest sql.NullInt64
		err := rows.Scan(&s.Transport, &s.Pending, &oldest, &s.BlockedKeys, &s.Delayed, &s.Failed)
		s.OldestAgeSeconds = age(oldest)
		return err
	})
}

// QueueStats implements admin.Database.
func (db *DB) QueueStats(ctx context.Context) ([]admin.QueueStats, error) {
	return query(ctx, db, db.adminSQL.Query("queue_stats"), func(rows *sql.Rows, s *admin.QueueStats) error {
		var oldest sql.NullInt64
		err := rows.Scan(&s.Queue, &s.Pending, &oldest, &s.InFlight, &s.Retrying)
		s.OldestAgeSeconds = age(oldest)
		return err
	}, time.Now().UnixMicro())
}

// age is how long ago t was, in seconds; the file's clock is this machine's.
func age(t sql.NullInt64) float64 {
	if !t.Valid {
		return 0
	}
	return sqlcore.Age(time.Since(micros(t.Int64)).Seconds())
}

// InboxStats implements admin.Database.
func (db *DB) InboxStats(ctx context.Context) ([]admin.InboxStats, error) {
	return query(ctx, db, db.inboxSQL.Query("stats"), func(rows *sql.Rows, s *admin.InboxStats) error {
		var oldest, newest int64
		err := rows.Scan(&s.Handler, &s.Entries, &oldest, &newest)
		s.Oldest, s.Newest = micros(oldest), micros(newest)
		return err
	})
}

// InboxLookup implements admin.Database.
func (db *DB) InboxLookup(ctx context.Context, idOrKey string) ([]admin.InboxEntry, error) {
	id, err := waybill.ParseMessageID(idOrKey)
	if err != nil {
		id = waybill.MessageID{} // then it is an idempotency key
	}
	found, err := query(ctx, db, db.inboxSQL.Query("lookup"), scanEntry, id[:], idOrKey, id.String())
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("inbox of %s: message %q: %w", db.path, idOrKey, waybill.ErrNotFound)
	}
	return found, err
}

func scanEntry(rows *sql.Rows, e *admin.InboxEntry) error {
	var at int64
	err := rows.Scan(&e.Handler, &e.DedupKey, &e.MessageID, &at)
	e.ProcessedAt = micros(at)
	return err
}

// InboxEntries implements admin.Database.
func (db *DB) InboxEntries(ctx context.Context, q admin.InboxQuery) ([]admin.InboxEntry, error) {
	after, limit, searched := q.Page()
	return query(ctx, db, db.inboxSQL.Query("entries"), scanEntry, after.ProcessedAt.UnixMicro(), after.Handler, after.DedupKey, q.Handler, limit, searched)
}

// InboxOlder implements admin.Database.
func (db *DB) InboxOlder(ctx context.Context, age time.Duration) (n int, err error) {
	before := time.Now().Add(-age).UnixMicro()
	err = db.readRow(ctx, db.inboxSQL.Query("count_older"), []any{before}, []any{&n})
	return n, err
}

// pruneBatch is how many entries one transaction removes.
const pruneBatch = 1000

// InboxPrune implements admin.Database.
func (db *DB) InboxPrune(ctx context.Context, age time.Duration, progress func(int)) (int, error) {
	recorded, err := db.InboxRetention(ctx)
	if err := errors.Join(err, admin.CheckRetention(age, recorded)); err != nil {
		return 0, err
	}
	before := time.Now().Add(-age).UnixMicro()
	return sqlcore.Prune(pruneBatch, progress, func() (removed int, err error) {
		err = db.write(ctx, func(tx *txn) (err error) {
			removed, err = tx.exec(ctx, db.inboxSQL.Query("prune"), before, pruneBatch)
			return err
		})
		return removed, err
	})
}
