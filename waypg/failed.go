package waypg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

func failedSQL(p *catalog) sqlfile.Set { return p.failed }

// Failed implements admin.Database.
func (db *DB) Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error) {
	after, last := q.Span()
	return query(ctx, db, failedSQL, "list", func(rows pgx.Rows, m *admin.FailedMessage) error {
		err := rows.Scan(&m.Number, &m.State, &m.Transport, &m.Name, &m.Key, (*[16]byte)(&m.ID), &m.CreatedAt, &m.Failures, &m.FirstFailedAt, &m.FailedAt, &m.LastError, &m.RemovedAt, &m.Bytes, &m.Source, &m.FailureTransport, &m.Handler, &m.ErrorType, &m.Fingerprint)
		toUTC(&m.CreatedAt, &m.FailedAt, m.FirstFailedAt, m.RemovedAt)
		return err
	}, append(failedFilter(q), after, last, limit(q.Limit))...)
}

// failedFilter are the first parameters of the statements that select dead letters.
func failedFilter(q admin.FailedQuery) []any {
	return []any{
		q.State, q.Transport, q.Key, q.Name, nullIf(len(q.Numbers) == 0, q.Numbers),
		q.Source, q.FailureTransport, q.Handler, q.Fingerprint, sqlcore.Valid(q.Error),
		nullIf(q.Since.IsZero(), q.Since), nullIf(q.Until.IsZero(), q.Until),
	}
}

// FailedGroups implements admin.DeadLetters.
func (db *DB) FailedGroups(ctx context.Context, q admin.FailedQuery) ([]admin.FailedGroup, error) {
	return query(ctx, db, failedSQL, "groups", func(rows pgx.Rows, g *admin.FailedGroup) error {
		err := rows.Scan(&g.Fingerprint, &g.Messages, &g.FirstFailedAt, &g.LastFailedAt, &g.Names, &g.Handlers, &g.Example, &g.Error)
		toUTC(&g.FirstFailedAt, &g.LastFailedAt)
		return err
	}, failedFilter(q)...)
}

// FailedHours implements admin.DeadLetters.
func (db *DB) FailedHours(ctx context.Context, q admin.FailedQuery, at time.Time) ([]admin.FailedHour, error) {
	return query(ctx, db, failedSQL, "hours", func(rows pgx.Rows, h *admin.FailedHour) error {
		return rows.Scan(&h.Fingerprint, &h.Error, &h.Ago, &h.Messages)
	}, append(failedFilter(q.LastDay(at)), at)...)
}

// FailedAgain implements admin.DeadLetters.
func (db *DB) FailedAgain(ctx context.Context, replayed ...admin.FailedMessage) (n int, err error) {
	transports, ids := make([]string, len(replayed)), make([]string, len(replayed))
	for i, m := range replayed {
		transports[i], ids[i] = m.Transport, m.ID.String()
	}
	err = db.readRow(ctx, failedSQL, "failed_again", []any{transports, ids}, &n)
	return n, err
}

// WorkerStats implements admin.Retries.
func (db *DB) WorkerStats(ctx context.Context) ([]admin.WorkerStats, error) {
	return query(ctx, db, failedSQL, "worker_stats", func(rows pgx.Rows, s *admin.WorkerStats) error {
		return rows.Scan(&s.Transport, &s.Retrying, &s.Parked, &s.Failed)
	})
}

// FailedContent implements admin.Database.
func (db *DB) FailedContent(ctx context.Context, number int64) (c admin.FailedContent, err error) {
	err = db.readRow(ctx, failedSQL, "content", []any{number}, (*[]byte)(&c.Headers), &c.Body)
	if errors.Is(err, pgx.ErrNoRows) {
		return c, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound)
	}
	return c, err
}

// Audit implements admin.DeadLetters.
func (db *DB) Audit(ctx context.Context, before int64, max int) ([]admin.AuditEntry, error) {
	return query(ctx, db, failedSQL, "audit_list", func(rows pgx.Rows, e *admin.AuditEntry) error {
		err := rows.Scan(&e.Number, &e.At, &e.Actor, &e.Action, (*[]byte)(&e.Filter), &e.Messages)
		toUTC(&e.At)
		return err
	}, before, limit(max))
}
