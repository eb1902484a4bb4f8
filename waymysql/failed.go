package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/sqlcore"
)

// Failed implements admin.Database.
func (db *DB) Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error) {
	after, last := q.Span()
	s := fill(db.failed.Query("list"), db.chosen(q), after, last, limit(q.Limit))
	return query(ctx, db, s.text, func(rows *sql.Rows, m *admin.FailedMessage) error {
		return rows.Scan(&m.Number, &m.State, &m.Transport, &m.Name, &m.Key, id{&m.ID}, moment{&m.CreatedAt}, &m.Failures, maybe{&m.FirstFailedAt}, moment{&m.FailedAt}, &m.LastError, maybe{&m.RemovedAt}, &m.Bytes, &m.Source, &m.FailureTransport, &m.Handler, &m.ErrorType, &m.Fingerprint)
	}, s.args...)
}

// The times of an empty filter.
var firstTime, lastTime = time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// chosen is the condition for the dead letters of a query.
func (db *DB) chosen(q admin.FailedQuery) clause {
	since, until := firstTime, lastTime
	if !q.Since.IsZero() {
		since = q.Since
	}
	if !q.Until.IsZero() {
		until = q.Until
	}
	return clause{db.failed.Query("chosen"), append(
		twice(q.State, q.Transport, q.Key, q.Name, join(q.Numbers), q.Source, q.FailureTransport, q.Handler, q.Fingerprint),
		sqlcore.Valid(q.Error), sqlcore.Valid(q.Error), stamp(since), stamp(until),
	)}
}

// FailedGroups implements admin.DeadLetters. A row of the statement is the part of a group
// that has one name and one handler: MySQL has no aggregate for lists without a limit.
func (db *DB) FailedGroups(ctx context.Context, q admin.FailedQuery) ([]admin.FailedGroup, error) {
	groups, byKind := []admin.FailedGroup{}, map[[2]string]int{}
	s := fill(db.failed.Query("groups"), db.chosen(q))
	parts, err := query(ctx, db, s.text, func(rows *sql.Rows, g *admin.FailedGroup) error {
		g.Names, g.Handlers = make([]string, 1), make([]string, 1)
		return rows.Scan(&g.Fingerprint, &g.Names[0], &g.Handlers[0], &g.Messages, moment{&g.FirstFailedAt}, moment{&g.LastFailedAt}, &g.Example, &g.Error)
	}, s.args...)
	for _, part := range parts {
		kind := [2]string{part.Fingerprint, ""}
		if part.Fingerprint == "" {
			kind[1] = part.Error
		}
		i, known := byKind[kind]
		if !known {
			i = len(groups)
			byKind[kind], groups = i, append(groups, admin.FailedGroup{Fingerprint: part.Fingerprint, FirstFailedAt: part.FirstFailedAt, Names: []string{}, Handlers: []string{}})
		}
		merge(&groups[i], part)
	}
	slices.SortFunc(groups, func(a, b admin.FailedGroup) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Example, b.Example))
	})
	return groups, err
}

// merge adds a part to a group.
func merge(g *admin.FailedGroup, part admin.FailedGroup) {
	g.Messages += part.Messages
	if part.FirstFailedAt.Before(g.FirstFailedAt) {
		g.FirstFailedAt = part.FirstFailedAt
	}
	if part.LastFailedAt.After(g.LastFailedAt) {
		g.LastFailedAt = part.LastFailedAt
	}
	if part.Example > g.Example {
		g.Example, g.Error = part.Example, part.Error
	}
	g.Names, g.Handlers = insert(g.Names, part.Names[0]), insert(g.Handlers, part.Handlers[0])
}

// insert adds a name, unless it is empty, to names in order without duplicates.
func insert(names []string, name string) []string {
	at, found := slices.BinarySearch(names, name)
	if found || name == "" {
		return names
	}
	return slices.Insert(names, at, name)
}

// FailedHours implements admin.DeadLetters.
func (db *DB) FailedHours(ctx context.Context, q admin.FailedQuery, at time.Time) ([]admin.FailedHour, error) {
	s := fill(db.failed.Query("hours"), stamp(at), db.chosen(q.LastDay(at)))
	return query(ctx, db, s.text, func(rows *sql.Rows, h *admin.FailedHour) error {
		return rows.Scan(&h.Fingerprint, &h.Error, &h.Ago, &h.Messages)
	}, s.args...)
}

// FailedAgain implements admin.DeadLetters.
func (db *DB) FailedAgain(ctx context.Context, replayed ...admin.FailedMessage) (n int, err error) {
	pairs := make([][2]string, len(replayed))
	for i, m := range replayed {
		pairs[i] = [2]string{fmt.Sprintf("%x", m.Transport), hexID(m.ID)}
	}
	err = db.readRow(ctx, db.failed.Query("failed_again"), []any{jsonOf(pairs)}, &n)
	return n, err
}

// Audit implements admin.DeadLetters.
func (db *DB) Audit(ctx context.Context, before int64, max int) ([]admin.AuditEntry, error) {
	return query(ctx, db, db.failed.Query("audit_list"), func(rows *sql.Rows, e *admin.AuditEntry) error {
		return rows.Scan(&e.Number, moment{&e.At}, &e.Actor, &e.Action, (*[]byte)(&e.Filter), &e.Messages)
	}, before, before, limit(max))
}

// FailedContent implements admin.Database.
func (db *DB) FailedContent(ctx context.Context, number int64) (c admin.FailedContent, err error) {
	err = db.readRow(ctx, db.failed.Query("content"), []any{number}, (*[]byte)(&c.Headers), &c.Body)
	if errors.Is(err, sql.ErrNoRows) {
		return c, fmt.Errorf("failed message %d: %w", number, waybill.ErrNotFound)
	}
	return c, err
}
