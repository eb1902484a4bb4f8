package waysqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// Failed implements admin.Database.
func (db *DB) Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error) {
	after, last := q.Span()
	return query(ctx, db, db.failedSQL.Query("list"), func(rows *sql.Rows, m *admin.FailedMessage) error {
		var created, at int64
		var first, removed sql.NullInt64
		err := rows.Scan(&m.Number, &m.State, &m.Transport, &m.Name, &m.Key, &m.ID, &created, &m.Failures, &first, &at, &m.LastError, &removed, &m.Bytes, &m.Source, &m.FailureTransport, &m.Handler, &m.ErrorType, &m.Fingerprint)
		m.CreatedAt, m.FirstFailedAt, m.FailedAt, m.RemovedAt = micros(created), microsOrNil(first), micros(at), microsOrNil(removed)
		return err
	}, append(failedFilter(q), after, last, cmp.Or(q.Limit, -1))...)
}

// failedFilter are the first parameters of the statements that select dead letters.
func failedFilter(q admin.FailedQuery) []any {
	since, until := int64(math.MinInt64), int64(math.MaxInt64)
	if !q.Since.IsZero() {
		since = q.Since.UnixMicro()
	}
	if !q.Until.IsZero() {
		until = q.Until.UnixMicro()
	}
	return []any{
		q.State, q.Transport, q.Key, q.Name, list(q.Numbers),
		q.Source, q.FailureTransport, q.Handler, q.Fingerprint, q.Error, since, until,
	}
}

// FailedGroups implements admin.DeadLetters.
func (db *DB) FailedGroups(ctx context.Context, q admin.FailedQuery) ([]admin.FailedGroup, error) {
	return query(ctx, db, db.failedSQL.Query("groups"), func(rows *sql.Rows, g *admin.FailedGroup) error {
		var first, last int64
		var names, handlers string
		if err := rows.Scan(&g.Fingerprint, &g.Messages, &first, &last, &names, &handlers, &g.Example, &g.Error); err != nil {
			return err
		}
		g.FirstFailedAt, g.LastFailedAt = micros(first), micros(last)
		if err := json.Unmarshal([]byte(names), &g.Names); err != nil {
			return err
		}
		err := json.Unmarshal([]byte(handlers), &g.Handlers)
		slices.Sort(g.Names)
		slices.Sort(g.Handlers)
		return err
	}, failedFilter(q)...)
}

// FailedHours implements admin.DeadLetters.
func (db *DB) FailedHours(ctx context.Context, q admin.FailedQuery, at time.Time) ([]admin.FailedHour, error) {
	return query(ctx, db, db.failedSQL.Query("hours"), func(rows *sql.Rows, h *admin.FailedHour) error {
		return rows.Scan(&h.Fingerprint, &h.Error, &h.Ago, &h.Messages)
	}, append(failedFilter(q.LastDay(at)), at.UnixMicro())...)
}

// FailedAgain implements admin.DeadLetters.
func (db *DB) FailedAgain(ctx context.Context, replayed ...admin.FailedMessage) (n int, err error) {
	pairs := make([][2]string, len(replayed))
	for i, m := range replayed {
		pairs[i] = [2]string{m.Transport, hex.EncodeToString(m.ID[:])}
	}
	text, _ := json.Marshal(pairs) // texts always encode
	found, err := query(ctx, db, db.failedSQL.Query("failed_again"), func(rows *sql.Rows, n *int) error { return rows.Scan(n) }, string(text))
	if err != nil {
		return 0, err
	}
	return found[0], nil
}

// WorkerStats implements admin.Retries.
func (db *DB) WorkerStats(ctx context.Context) ([]admin.WorkerStats, error) {
	return query(ctx, db, db.failedSQL.Query("worker_stats"), func(rows *sql.Rows, s *admin.WorkerStats) error {
		return rows.Scan(&s.Transport, &s.Retrying, &s.Parked, &s.Failed)
	})
}

// Audit implements admin.DeadLetters.
func (db *DB) Audit(ctx context.Context, before int64, limit int) ([]admin.AuditEntry, error) {
	return query(ctx, db, db.failedSQL.Query("audit_list"), func(rows *sql.Rows, e *admin.AuditEntry) error {
		var at int64
		var filter string
		err := rows.Scan(&e.Number, &at, &e.Actor, &e.Action, &filter, &e.Messages)
		e.At, e.Filter = micros(at), json.RawMessage(filter)
		return err
	}, before, cmp.Or(limit, -1))
}

// FailedContent implements admin.Database. Headers of another program's that are
// no JSON are one string of it.
func (db *DB) FailedContent(ctx context.Context, number int64) (c admin.FailedContent, err error) {
	var meta string
	err = db.readRow(ctx, db.failedSQL.Query("content"), []any{number}, []any{&meta, &c.Body})
	if errors.Is(err, sql.ErrNoRows) {
		return c, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound)
	}
	c.Headers = json.RawMessage(meta)
	if !json.Valid(c.Headers) {
		c.Headers, _ = json.Marshal(meta)
	}
	return c, err
}
