package waymysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
)

// query runs a statement of an operator's and scans each row.
func query[T any](ctx context.Context, db *DB, text string, scan func(*sql.Rows, *T) error, args ...any) ([]T, error) {
	if err := db.ensureSchema(ctx); err != nil {
		return nil, err
	}
	found := []T{} // [] and not null in JSON
	err := each(ctx, db.pool, text, func(rows *sql.Rows) error {
		var one T
		err := scan(rows, &one)
		found = append(found, one)
		return err
	}, args...)
	if err != nil {
		return nil, translate(err)
	}
	return found, nil
}

// readRow scans the only row of a statement, or returns sql.ErrNoRows.
func (db *DB) readRow(ctx context.Context, text string, args []any, into ...any) error {
	if err := db.ensureSchema(ctx); err != nil {
		return err
	}
	return translate(db.pool.QueryRowContext(ctx, text, args...).Scan(into...))
}

// limit returns n, or for zero a number that no table reaches.
func limit(n int) int64 {
	if n == 0 {
		return math.MaxInt64
	}
	return int64(n)
}

// twice gives each filter as often as a statement has it: once to tell whether it is
// empty.
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

// Outbox implements admin.Database: pending messages first, then delayed ones.
func (db *DB) Outbox(ctx context.Context, q admin.OutboxQuery) ([]admin.OutboxMessage, error) {
	scan := func(rows *sql.Rows, m *admin.OutboxMessage) error {
		return rows.Scan(&m.Row, &m.Transport, &m.Name, &m.Key, id{&m.ID}, moment{&m.CreatedAt}, maybe{&m.DueAt}, &m.Bytes, &m.Blocked)
	}
	found, err := []admin.OutboxMessage{}, error(nil)
	keyed, unkeyed := q.Rows()
	switch pending, _ := q.Parts(); {
	case pending && q.Key != "":
		found, err = db.outboxOfKey(ctx, q, scan)
	case pending:
		most := limit(q.Limit)
		args := append(twice(q.Transport, q.Name), keyed, most)
		args = append(append(args, twice(q.Transport, q.Name)...), unkeyed, most, most)
		found, err = query(ctx, db, db.admin.Query("outbox_list"), scan, args...)
	}
	if _, delayed := q.Parts(); err != nil || !delayed || q.Limit > 0 && len(found) >= q.Limit {
		return found, err
	}
	rest := q.Limit
	if rest > 0 {
		rest -= len(found)
	}
	due, row := q.Delayed()
	statement, args := "delayed_list", append(twice(q.Transport), twice(q.Transport)...)
	if q.Key != "" || q.Name != "" {
		statement, args = "delayed_of", append(args, twice(q.Key, q.Name)...)
	}
	refused := q.Behind != nil && q.Behind.DueAt != nil && q.Behind.Blocked
	args = append(args, refused, refused, stamp(due), stamp(due), row, limit(rest))
	delayed, err := query(ctx, db, db.admin.Query(statement), scan, args...)
	return append(found, delayed...), err
}

// outboxOfKey lists the pending messages of q.Key.
func (db *DB) outboxOfKey(ctx context.Context, q admin.OutboxQuery, scan func(*sql.Rows, *admin.OutboxMessage) error) ([]admin.OutboxMessage, error) {
	var buckets int
	if err := db.readRow(ctx, db.outbox.Query("buckets_now"), nil, &buckets); err != nil {
		return nil, err
	}
	bucket := outbox.Bucket(q.Key, buckets)
	after, _ := q.Rows()
	args := slices.Concat([]any{bucket, bucket}, twice(q.Transport), []any{[]byte(q.Key)}, twice(q.Name), []any{after, limit(q.Limit)})
	return query(ctx, db, db.admin.Query("outbox_of_key"), scan, args...)
}

// Blocked implements admin.Database.
func (db *DB) Blocked(ctx context.Context, transport string, most int) ([]admin.BlockedKey, error) {
	return query(ctx, db, db.admin.Query("blocked"), scanBlocked, append(twice(transport), limit(most))...)
}

// BlockedKeys implements admin.Database.
func (db *DB) BlockedKeys(ctx context.Context, q admin.BlockedKeysQuery) ([]admin.BlockedKey, error) {
	after := []any{0, 0, stamp(firstTime), "", "", "", 0}
	if a := q.After; a != nil {
		after = []any{1, a.Route == "", stamp(a.FirstFailedAt), []byte(a.Key), []byte(a.Route), []byte(a.Transport), a.Row}
	}
	key := []byte(q.Key)
	args := append([]any{key, key, key}, twice(q.Transport, q.Key)...)
	return query(ctx, db, db.admin.Query("blocked_keys"), scanBlocked, append(append(args, after...), limit(q.Limit))...)
}

func scanBlocked(rows *sql.Rows, b *admin.BlockedKey) error {
	return rows.Scan(&b.Transport, &b.Route, &b.Key, &b.Row, id{&b.HeadID}, &b.HeadName, &b.Failures, moment{&b.FirstFailedAt}, maybe{&b.NextAttemptAt}, &b.LastError, &b.State, &b.Policy, &b.Waiting, &b.Parked)
}

// Relays implements admin.Database.
func (db *DB) Relays(ctx context.Context) ([]admin.Relay, error) {
	return query(ctx, db, db.admin.Query("relays"), func(rows *sql.Rows, r *admin.Relay) error {
		err := rows.Scan(&r.Transport, &r.Host, &r.PID, moment{&r.StartedAt}, moment{&r.SeenAt}, &r.AgeSeconds, &r.Problem, maybe{&r.Since})
		r.AgeSeconds = sqlcore.Age(r.AgeSeconds)
		return err
	})
}

// OutboxStats implements admin.Database.
func (db *DB) OutboxStats(ctx context.Context) ([]admin.OutboxStats, error) {
	return query(ctx, db, db.admin.Query("outbox_stats"), func(rows *sql.Rows, s *admin.OutboxStats) error {
		err := rows.Scan(&s.Transport, &s.Pending, &s.OldestAgeSeconds, &s.BlockedKeys, &s.Delayed, &s.Failed)
		s.OldestAgeSeconds = sqlcore.Age(s.OldestAgeSeconds)
		return err
	})
}

// QueueStats implements admin.Database.
func (db *DB) QueueStats(ctx context.Context) ([]admin.QueueStats, error) {
	return query(ctx, db, db.admin.Query("queue_stats"), func(rows *sql.Rows, s *admin.QueueStats) error {
		err := rows.Scan(&s.Queue, &s.Pending, &s.OldestAgeSeconds, &s.InFlight, &s.Retrying)
		s.OldestAgeSeconds = sqlcore.Age(s.OldestAgeSeconds)
		return err
	})
}

// Retries implements admin.Retries.
func (db *DB) Retries(ctx context.Context, q admin.RetriesQuery) ([]admin.RetryingMessage, error) {
	return query(ctx, db, db.retry.Query("list"), func(rows *sql.Rows, m *admin.RetryingMessage) error {
		return rows.Scan(&m.Row, &m.Transport, &m.Name, &m.Key, id{&m.ID}, moment{&m.CreatedAt}, &m.Failures, &m.Crashes, maybe{&m.DueAt}, &m.Parked, &m.InFlight, &m.Bytes, &m.LastError)
	}, append(twice(q.Transport, q.Key), q.After, limit(q.Limit))...)
}

// WorkerStats implements admin.Retries.
func (db *DB) WorkerStats(ctx context.Context) ([]admin.WorkerStats, error) {
	return query(ctx, db, db.retry.Query("worker_stats"), func(rows *sql.Rows, s *admin.WorkerStats) error {
		return rows.Scan(&s.Transport, &s.Retrying, &s.Parked, &s.Failed)
	})
}

// FailedAttempts implements admin.Retries.
func (db *DB) FailedAttempts(ctx context.Context, transport string, message waybill.MessageID) ([]admin.FailedAttempt, error) {
	return query(ctx, db, db.retry.Query("attempts"), func(rows *sql.Rows, a *admin.FailedAttempt) error {
		return rows.Scan(&a.Attempt, moment{&a.At}, &a.Worker, &a.Handler, &a.ErrorType, &a.Error, &a.Stack, &a.Fingerprint)
	}, []byte(transport), hexID(message))
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
	keys, err := db.dedupKeys(ctx, sqlcore.Valid(idOrKey))
	if err != nil {
		return nil, err
	}
	found, err := query(ctx, db, db.inbox.Query("lookup"), scanEntry, hexID(message), keys)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("inbox of %s: message %q: %w", db.schema, idOrKey, waybill.ErrNotFound)
	}
	return found, err
}

func scanEntry(rows *sql.Rows, e *admin.InboxEntry) error {
	return rows.Scan(&e.Handler, &e.DedupKey, id{&e.MessageID}, moment{&e.ProcessedAt})
}

// InboxEntries implements admin.Database. Entries in doubt are not among them.
func (db *DB) InboxEntries(ctx context.Context, q admin.InboxQuery) ([]admin.InboxEntry, error) {
	after, limit, searched := q.Page()
	at, handler := stamp(after.ProcessedAt), []byte(after.Handler)
	return query(ctx, db, db.inbox.Query("entries"), scanEntry, at, at, handler, handler, []byte(after.DedupKey), searched, []byte(q.Handler), limit)
}

// dedupKeys returns, as JSON of pairs in hexadecimal, the handlers and dedup keys that an
// idempotency key may have. The message names that a handler has seen are found one behind the
// other: the entries of a name are skipped, 0 follows the slash.
func (db *DB) dedupKeys(ctx context.Context, key string) (string, error) {
	handlers, err := query(ctx, db, db.inbox.Query("handlers"), func(rows *sql.Rows, handler *[]byte) error { return rows.Scan(handler) })
	if err != nil {
		return "", err
	}
	pairs := [][2]string{}
	for _, handler := range handlers {
		for from := "k:"; ; {
			var next sql.NullString
			if err := db.pool.QueryRowContext(ctx, db.inbox.Query("next_key"), handler, []byte(from)).Scan(&next); err != nil {
				return "", translate(err)
			}
			if !next.Valid {
				break
			}
			name, _, _ := strings.Cut(next.String, "/")
			pairs = append(pairs, [2]string{hex.EncodeToString(handler), hex.EncodeToString([]byte(name + "/" + key))})
			from = name + "0"
		}
	}
	return jsonOf(pairs), nil
}

// InboxOlder implements admin.Database.
func (db *DB) InboxOlder(ctx context.Context, age time.Duration) (n int, err error) {
	err = db.readRow(ctx, db.inbox.Query("count_older"), []any{age.Microseconds()}, &n)
	return n, err
}

// pruneBatch is how many entries one transaction removes.
const pruneBatch = 200

// InboxPrune implements admin.Database.
func (db *DB) InboxPrune(ctx context.Context, age time.Duration, progress func(int)) (total int, err error) {
	recorded, err := db.InboxRetention(ctx)
	if err := errors.Join(err, admin.CheckRetention(age, recorded)); err != nil {
		return 0, err
	}
	return sqlcore.Prune(pruneBatch, progress, func() (n int, err error) {
		err = db.inTx(ctx, func(tx *sql.Tx) (err error) {
			n, err = db.prune(ctx, tx, age, pruneBatch)
			return err
		})
		return n, translate(err)
	})
}

// prune removes a batch.
func (db *DB) prune(ctx context.Context, tx *sql.Tx, age time.Duration, max int) (n int, err error) {
	var old []clause
	err = each(ctx, tx, db.inbox.Query("old"), func(rows *sql.Rows) error {
		var handler, key []byte
		err := rows.Scan(&handler, &key)
		old = append(old, fill(db.inbox.Query("entry"), handler, key))
		return err
	}, age.Microseconds(), max)
	if err != nil || len(old) == 0 {
		return 0, err
	}
	s := fill(db.inbox.Query("delete_old"), or(old))
	_, err = tx.ExecContext(ctx, s.text, s.args...)
	return len(old), err
}
