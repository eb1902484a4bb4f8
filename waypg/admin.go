package waypg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

// query runs a statement of an operator's and scans each row.
func query[T any](ctx context.Context, db *DB, set func(*catalog) sqlfile.Set, name string, scan func(pgx.Rows, *T) error, args ...any) ([]T, error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return nil, err
	}
	// The plan is made for the filters that are set: a general one would read whole tables.
	rows, err := db.pool.Query(ctx, set(p).Query(name), append([]any{pgx.QueryExecModeExec}, args...)...)
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

// readRow scans the only row of a statement, or returns pgx.ErrNoRows.
func (db *DB) readRow(ctx context.Context, set func(*catalog) sqlfile.Set, name string, args []any, into ...any) error {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return err
	}
	return translate(db.pool.QueryRow(ctx, set(p).Query(name), args...).Scan(into...))
}

func adminSQL(p *catalog) sqlfile.Set  { return p.admin }
func inboxSQL(p *catalog) sqlfile.Set  { return p.inbox }
func outboxSQL(p *catalog) sqlfile.Set { return p.outbox }

// toUTC converts times that the client has read in the zone of this machine. Nil is left out.
func toUTC(times ...*time.Time) {
	for _, t := range times {
		if t != nil {
			*t = t.UTC()
		}
	}
}

// limit is NULL, which means none, for zero.
func limit(n int) *int { return nullIf(n == 0, n) }

// Outbox implements admin.Database: pending messages, then delayed ones.
func (db *DB) Outbox(ctx context.Context, q admin.OutboxQuery) ([]admin.OutboxMessage, error) {
	scan := func(rows pgx.Rows, m *admin.OutboxMessage) error {
		err := rows.Scan(&m.Row, &m.Transport, &m.Name, &m.Key, (*[16]byte)(&m.ID), &m.CreatedAt, &m.DueAt, &m.Bytes, &m.Blocked)
		toUTC(&m.CreatedAt, m.DueAt)
		return err
	}
	found, err := []admin.OutboxMessage{}, error(nil)
	pending, delayedToo := q.Parts()
	if pending {
		keyed, unkeyed := q.Rows()
		found, err = query(ctx, db, adminSQL, "outbox_list", scan, q.Transport, q.Key, q.Name, keyed, unkeyed, limit(q.Limit))
	}
	if err != nil || !delayedToo || q.Limit > 0 && len(found) >= q.Limit {
		return found, err
	}
	rest := q.Limit
	if rest > 0 {
		rest -= len(found)
	}
	due, row := q.Delayed()
	delayed, err := query(ctx, db, adminSQL, "delayed_list", scan, q.Transport, q.Key, q.Name, due, row, limit(rest))
	return append(found, delayed...), err
}

// Blocked implements admin.Database.
func (db *DB) Blocked(ctx context.Context, transport string, max int) ([]admin.BlockedKey, error) {
	return query(ctx, db, adminSQL, "blocked", scanBlocked, transport, limit(max))
}

// BlockedKeys implements admin.Database.
func (db *DB) BlockedKeys(ctx context.Context, q admin.BlockedKeysQuery) ([]admin.BlockedKey, error) {
	after := make([]any, 6)
	if a := q.After; a != nil {
		after = []any{a.Route == "", a.FirstFailedAt, a.Key, a.Route, a.Transport, a.Row}
	}
	args := append([]any{q.Transport, q.Key}, append(after, limit(q.Limit))...)
	return query(ctx, db, adminSQL, "blocked_keys", scanBlocked, args...)
}

func scanBlocked(rows pgx.Rows, b *admin.BlockedKey) error {
	err := rows.Scan(&b.Transport, &b.Route, &b.Key, &b.Row, (*[16]byte)(&b.HeadID), &b.HeadName, &b.Failures, &b.FirstFailedAt, &b.NextAttemptAt, &b.LastError, &b.State, &b.Policy, &b.Waiting, &b.Parked)
	toUTC(&b.FirstFailedAt, b.NextAttemptAt)
	return err
}

// Relays implements admin.Database.
func (db *DB) Relays(ctx context.Context) ([]admin.Relay, error) {
	return query(ctx, db, adminSQL, "relays", func(rows pgx.Rows, r *admin.Relay) error {
		err := rows.Scan(&r.Transport, &r.Host, &r.PID, &r.StartedAt, &r.SeenAt, &r.AgeSeconds, &r.Problem, &r.Since)
		toUTC(&r.StartedAt, &r.SeenAt, r.Since)
		r.AgeSeconds = sqlcore.Age(r.AgeSeconds)
		if why, ok := strings.CutPrefix(r.Problem, degradedMark); ok {
			r.Problem, r.Degraded = "", why
		}
		return err
	})
}

// OutboxStats implements admin.Database.
func (db *DB) OutboxStats(ctx context.Context) ([]admin.OutboxStats, error) {
	return query(ctx, db, adminSQL, "outbox_stats", func(rows pgx.Rows, s *admin.OutboxStats) error {
		err := rows.Scan(&s.Transport, &s.Pending, &s.OldestAgeSeconds, &s.BlockedKeys, &s.Delayed, &s.Failed)
		s.OldestAgeSeconds = sqlcore.Age(s.OldestAgeSeconds)
		return err
	})
}

// QueueStats implements admin.Database.
func (db *DB) QueueStats(ctx context.Context) ([]admin.QueueStats, error) {
	return query(ctx, db, adminSQL, "queue_stats", func(rows pgx.Rows, s *admin.QueueStats) error {
		err := rows.Scan(&s.Queue, &s.Pending, &s.OldestAgeSeconds, &s.InFlight, &s.Retrying)
		s.OldestAgeSeconds = sqlcore.Age(s.OldestAgeSeconds)
		return err
	})
}

// InboxStats implements admin.Database.
func (db *DB) InboxStats(ctx context.Context) ([]admin.InboxStats, error) {
	return query(ctx, db, inboxSQL, "stats", func(rows pgx.Rows, s *admin.InboxStats) error {
		err := rows.Scan(&s.Handler, &s.Entries, &s.Oldest, &s.Newest)
		toUTC(&s.Oldest, &s.Newest)
		return err
	})
}

// InboxLookup implements admin.Database.
func (db *DB) InboxLookup(ctx context.Context, idOrKey string) ([]admin.InboxEntry, error) {
	id, err := waybill.ParseMessageID(idOrKey)
	if err != nil {
		id = waybill.MessageID{} // then it is an idempotency key
	}
	found, err := query(ctx, db, inboxSQL, "lookup", scanEntry, id.String(), sqlcore.Valid(idOrKey))
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("inbox of %s: message %q: %w", db.catalog.database, idOrKey, waybill.ErrNotFound)
	}
	return found, err
}

func scanEntry(rows pgx.Rows, e *admin.InboxEntry) error {
	err := rows.Scan(&e.Handler, &e.DedupKey, (*[16]byte)(&e.MessageID), &e.ProcessedAt)
	toUTC(&e.ProcessedAt)
	return err
}

// InboxEntries implements admin.Database.
func (db *DB) InboxEntries(ctx context.Context, q admin.InboxQuery) ([]admin.InboxEntry, error) {
	after, limit, searched := q.Page()
	return query(ctx, db, inboxSQL, "entries", scanEntry, after.ProcessedAt, sqlcore.Valid(after.Handler), sqlcore.Valid(after.DedupKey), sqlcore.Valid(q.Handler), limit, searched)
}

// InboxOlder implements admin.Database.
func (db *DB) InboxOlder(ctx context.Context, age time.Duration) (n int, err error) {
	err = db.readRow(ctx, inboxSQL, "count_older", []any{age.Seconds()}, &n)
	return n, err
}

// pruneBatch is how many entries one transaction removes.
const pruneBatch = 1000

// InboxPrune implements admin.Database.
func (db *DB) InboxPrune(ctx context.Context, age time.Duration, progress func(int)) (total int, err error) {
	p, err := db.ensureSchema(ctx)
	if err != nil {
		return 0, err
	}
	recorded, err := db.InboxRetention(ctx)
	if err := errors.Join(err, admin.CheckRetention(age, recorded)); err != nil {
		return 0, err
	}
	return sqlcore.Prune(pruneBatch, progress, func() (int, error) {
		tag, err := db.pool.Exec(ctx, p.inbox.Query("prune"), age.Seconds(), pruneBatch)
		return int(tag.RowsAffected()), translate(err)
	})
}
