package waymysql

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// query runs a statement of an operator's and scans each row.
func query[T any](ctx context.Context, db *DB, text string, scan func(*sql.Rows, *T) error, args ...any) ([]T, error) {
	if err := db.ready(ctx); err != nil {
		return nil, err
	}
	rows, err := db.pool.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, translate(err)
	}
	defer rows.Close()
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

// limit is one that no table reaches, for zero.
func limit(n int) int64 {
	if n == 0 {
		return math.MaxInt64
	}
	return int64(n)
}

// twice gives each filter as often as a statement asks: whether it is empty, and
// what it is.
func twice(filters ...string) (args []any) {
	for _, f := range filters {
		args = append(args, []byte(f), []byte(f))
	}
	return args
}

// moment scans microseconds.
type moment struct{ to *time.Time }

func (m moment) Scan(v any) error {
	var n sql.NullInt64
	err := n.Scan(v)
	*m.to = at(n.Int64)
	return err
}

// maybe scans microseconds or NULL.
type maybe struct{ to **time.Time }

func (m maybe) Scan(v any) error {
	var n sql.NullInt64
	err := n.Scan(v)
	if n.Valid {
		t := at(n.Int64)
		*m.to = &t
	}
	return err
}

// id scans a BINARY(16).
type id struct{ to *waybill.MessageID }

func (i id) Scan(v any) error {
	b, ok := v.([]byte)
	if !ok || len(b) != len(i.to) {
		return fmt.Errorf("a message_id is %T of %d bytes, want 16", v, len(b))
	}
	copy(i.to[:], b)
	return nil
}

// Outbox implements admin.Database: first what is pending, then what is delayed.
func (db *DB) Outbox(ctx context.Context, q admin.OutboxQuery) ([]admin.OutboxMessage, error) {
	scan := func(rows *sql.Rows, m *admin.OutboxMessage) error {
		return rows.Scan(&m.Row, &m.Transport, &m.Name, &m.Key, id{&m.ID}, moment{&m.CreatedAt}, maybe{&m.DueAt}, &m.Bytes, &m.Blocked)
	}
	found, err := query(ctx, db, db.admin.Query("outbox_list"), scan, append(twice(q.Transport, q.Key, q.Name), q.After, limit(q.Limit))...)
	if err != nil || q.After > 0 || q.Limit > 0 && len(found) >= q.Limit {
		return found, err
	}
	rest := q.Limit
	if rest > 0 {
		rest -= len(found)
	}
	args := append([]any{[]byte(q.Transport)}, twice(q.Transport, q.Key, q.Name)...)
	delayed, err := query(ctx, db, db.admin.Query("delayed_list"), scan, append(args, limit(rest))...)
	return append(found, delayed...), err
}

// Blocked implements admin.Database.
func (db *DB) Blocked(ctx context.Context, transport string, most int) ([]admin.BlockedKey, error) {
	return query(ctx, db, db.admin.Query("blocked"), func(rows *sql.Rows, b *admin.BlockedKey) error {
		return rows.Scan(&b.Transport, &b.Route, &b.Key, &b.Row, id{&b.HeadID}, &b.HeadName, &b.Failures, moment{&b.FirstFailedAt}, maybe{&b.NextAttemptAt}, &b.LastError, &b.State, &b.Policy, &b.Waiting, &b.Parked)
	}, append(twice(transport), limit(most))...)
}

// Release implements admin.Database.
func (db *DB) Release(ctx context.Context, q admin.BlockedQuery) (n int, err error) {
	if err := db.writer(ctx); err != nil {
		return 0, err
	}
	which := append(twice(q.Transport, q.Key, q.Route), q.Row, q.Row)
	err = db.inTx(ctx, func(tx *sql.Tx) error {
		// First, as Settle does it: whoever changes what is blocked takes turns.
		if _, err := tx.ExecContext(ctx, db.admin.Query("release_bump"), twice(q.Transport)...); err != nil {
			return err
		}
		removed, err := db.forgetGone(ctx, tx, which)
		if err != nil {
			return err
		}
		// Not the rows affected: one that is due already does not change.
		if err := tx.QueryRowContext(ctx, db.admin.Query("count_release"), which...).Scan(&n); err != nil {
			return err
		}
		n += removed
		_, err = tx.ExecContext(ctx, db.admin.Query("release"), which...)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("outbox release: %w", translate(err))
	}
	return n, nil
}

// forgetGone removes entries of which nothing is left.
func (db *DB) forgetGone(ctx context.Context, tx *sql.Tx, which []any) (n int, err error) {
	rows, err := tx.QueryContext(ctx, db.admin.Query("gone"), which...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var gone [][]any
	for rows.Next() {
		var lane int16
		var route, key []byte
		var row int64
		if err := rows.Scan(&lane, &route, &key, &row); err != nil {
			return 0, err
		}
		gone = append(gone, []any{lane, route, key, row})
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, entry := range gone {
		if _, err := tx.ExecContext(ctx, db.admin.Query("forget"), entry...); err != nil {
			return 0, err
		}
	}
	return len(gone), nil
}

// Relays implements admin.Database.
func (db *DB) Relays(ctx context.Context) ([]admin.Relay, error) {
	return query(ctx, db, db.admin.Query("relays"), func(rows *sql.Rows, r *admin.Relay) error {
		return rows.Scan(&r.Transport, &r.Host, &r.PID, moment{&r.StartedAt}, moment{&r.SeenAt}, &r.Problem, maybe{&r.Since})
	})
}

// OutboxStats implements admin.Database.
func (db *DB) OutboxStats(ctx context.Context) ([]admin.OutboxStats, error) {
	return query(ctx, db, db.admin.Query("outbox_stats"), func(rows *sql.Rows, s *admin.OutboxStats) error {
		err := rows.Scan(&s.Transport, &s.Pending, &s.OldestAgeSeconds, &s.BlockedKeys, &s.Delayed, &s.Failed)
		s.OldestAgeSeconds = millis(s.OldestAgeSeconds)
		return err
	})
}

// QueueStats implements admin.Database.
func (db *DB) QueueStats(ctx context.Context) ([]admin.QueueStats, error) {
	return query(ctx, db, db.admin.Query("queue_stats"), func(rows *sql.Rows, s *admin.QueueStats) error {
		err := rows.Scan(&s.Queue, &s.Pending, &s.OldestAgeSeconds, &s.InHand, &s.Retrying)
		s.OldestAgeSeconds = millis(s.OldestAgeSeconds)
		return err
	})
}

// millis rounds an age to what is worth printing.
func millis(seconds float64) float64 {
	return max(0, time.Duration(seconds*float64(time.Second)).Round(time.Millisecond).Seconds())
}

// InboxStats implements admin.Database.
func (db *DB) InboxStats(ctx context.Context) ([]admin.InboxStats, error) {
	return query(ctx, db, db.inbox.Query("stats"), func(rows *sql.Rows, s *admin.InboxStats) error {
		return rows.Scan(&s.Handler, &s.Entries, moment{&s.Oldest}, moment{&s.Newest})
	})
}

// InboxLookup implements admin.Database. An entry in doubt has the time zero of
// Unix.
func (db *DB) InboxLookup(ctx context.Context, idOrKey string) ([]admin.InboxEntry, error) {
	message, err := waybill.ParseMessageID(idOrKey)
	if err != nil {
		message = waybill.MessageID{} // then it is an idempotency key
	}
	found, err := query(ctx, db, db.inbox.Query("lookup"), func(rows *sql.Rows, e *admin.InboxEntry) error {
		return rows.Scan(&e.Handler, &e.DedupKey, id{&e.MessageID}, moment{&e.ProcessedAt})
	}, message[:], []byte("k:"+cleanText(idOrKey)))
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("inbox of %s: message %q: %w", db.schema, idOrKey, waybill.ErrNotFound)
	}
	return found, err
}

// InboxOlder implements admin.Database.
func (db *DB) InboxOlder(ctx context.Context, age time.Duration) (n int, err error) {
	if err := db.ready(ctx); err != nil {
		return 0, err
	}
	err = db.pool.QueryRowContext(ctx, db.inbox.Query("count_older"), age.Microseconds()).Scan(&n)
	return n, translate(err)
}

// pruneBatch is how many entries one transaction removes.
const pruneBatch = 200

// InboxPrune implements admin.Database.
func (db *DB) InboxPrune(ctx context.Context, age time.Duration, progress func(int)) (total int, err error) {
	if err := db.writer(ctx); err != nil {
		return 0, err
	}
	for {
		n := 0
		err := db.inTx(ctx, func(tx *sql.Tx) (err error) {
			n, err = db.prune(ctx, tx, age)
			return err
		})
		if err != nil {
			return total, fmt.Errorf("inbox prune: %w", translate(err))
		}
		total += n
		if progress != nil {
			progress(n)
		}
		if n < pruneBatch {
			return total, nil
		}
	}
}

// prune removes a batch, row by row of the primary key: on any other way it
// would wait for handlers.
func (db *DB) prune(ctx context.Context, tx *sql.Tx, age time.Duration) (n int, err error) {
	rows, err := tx.QueryContext(ctx, db.inbox.Query("old"), age.Microseconds(), pruneBatch)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var old []string
	var args []any
	for rows.Next() {
		var handler, key []byte
		if err := rows.Scan(&handler, &key); err != nil {
			return 0, err
		}
		old, args = append(old, "i.handler = ? AND i.dedup_key = ?"), append(args, handler, key)
	}
	if err := rows.Err(); err != nil || len(old) == 0 {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf("DELETE i FROM %sinbox AS i FORCE INDEX (PRIMARY) WHERE %s", qualified(db.schema, db.prefix), strings.Join(old, " OR ")), args...)
	return len(old), err
}
