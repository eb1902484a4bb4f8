package waymysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/lane"
)

// aside is what is blocked.
type aside struct {
	routes  map[string]blockedRoute
	buckets map[int16]bool        // of which a key has an entry, also one that is due
	keys    map[string]blockedKey // nil where there are too many to know
	waiting map[int16][]string    // by bucket: keys that are known, as literals
}

type blockedRoute struct {
	failures int
	waits    bool
}

type blockedKey struct {
	message  waybill.MessageID // that was refused
	failures int
}

// of reports whether keys of a bucket may have an entry.
func (a aside) of(bucket int16) bool { return a.buckets[bucket] || a.buckets[lane.Twin(bucket)] }

// To plan lookups for thirty buckets takes a server of MariaDB as many milliseconds, so
// statements have the names of what waits while they are few.
const (
	maxKnownKeys  = 500
	maxRouteNames = 20 // in each arm of a statement
)

func literal(name string) string { return fmt.Sprintf("X'%x'", name) }

// body is the expression for the body of a row, which is left out where its route
// waits.
func (a aside) body(lookUp string) string {
	var waiting []string
	for name, route := range a.routes {
		if route.waits {
			waiting = append(waiting, literal(name))
		}
	}
	switch n := len(waiting); {
	case n == 0:
		return "e.body"
	case n > maxRouteNames:
		return "CASE WHEN " + lookUp + " THEN e.body END"
	}
	slices.Sort(waiting)
	return "CASE WHEN e.message_name NOT IN (" + strings.Join(waiting, ", ") + ") THEN e.body END"
}

// fill writes into a row what is known of its key and route.
func (a aside) fill(r *lane.Row) {
	rec := r.Claimed.Record
	route := a.routes[rec.Name]
	r.Claimed.RouteFailures, r.Held = route.failures, route.waits
	if key, ok := a.keys[rec.Key]; ok {
		r.KeyBlocked = true
		if key.message == rec.ID {
			r.Claimed.Failures = key.failures
		}
	}
}

// readState reads which keys and routes wait, and who answers.
func (c *claim) readState(ctx context.Context) (server string, err error) {
	at := []any{c.db.schema, c.db.prefix + "outbox", c.Lane.ID}
	n, server, err := c.readAside(ctx, map[string]blockedKey{}, "blocked_entries", append(at, c.db.knownKeys+1, c.Lane.ID)...)
	if err == nil && n > c.db.knownKeys {
		_, server, err = c.readAside(ctx, nil, "blocked_buckets", at...)
	}
	if err == nil && server == "" {
		err = errors.New("waymysql: the outbox's table is gone")
	}
	return server, err
}

func (c *claim) readAside(ctx context.Context, keys map[string]blockedKey, query string, args ...any) (n int, server string, err error) {
	c.State.Next = map[int16]time.Time{}
	c.aside = aside{map[string]blockedRoute{}, map[int16]bool{}, keys, map[int16][]string{}}
	err = c.query(ctx, c.db.outbox.Query(query), func(rows *sql.Rows) (err error) {
		n++
		server, err = c.addState(rows)
		return err
	}, args...)
	return n, server, err
}

// addState reads an entry, or what those of a bucket have in common.
func (c *claim) addState(rows *sql.Rows) (server string, err error) {
	var now int64
	var who, route, key sql.NullString
	var bucket sql.Null[int16]
	var message []byte
	var next sql.NullInt64
	var failures sql.Null[int]
	if err := rows.Scan(&c.State.Version, &now, &who, &c.buckets, &bucket, &route, &key, &message, &next, &failures); err != nil {
		return "", err
	}
	c.State.Now = at(now)
	switch {
	case !bucket.Valid:
	case bucket.V == lane.Route:
		c.aside.routes[route.String] = blockedRoute{failures.V, next.Valid}
	case bucket.V != lane.Unkeyed:
		c.aside.buckets[bucket.V] = true
		if c.aside.keys == nil {
			break
		}
		entry := blockedKey{failures: failures.V}
		copy(entry.message[:], message)
		c.aside.keys[key.String] = entry
		if next.Valid {
			c.aside.waiting[bucket.V] = append(c.aside.waiting[bucket.V], literal(key.String))
		}
	}
	if until, ok := c.State.Next[bucket.V]; next.Valid && (!ok || at(next.Int64).Before(until)) {
		c.State.Next[bucket.V] = at(next.Int64)
	}
	return who.String, nil
}
