package dashboard

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// releaseKind is the kind of an operation, after the command.
const releaseKind = "outbox release"

// outboxView is the data of the page of the outbox.
type outboxView struct {
	Filter      admin.OutboxQuery
	Transports  []admin.OutboxStats
	Blocked     []admin.BlockedKey
	NextBlocked string    // address of the page with the entries after Blocked
	CountedAt   time.Time // of the waiting messages of Blocked; zero if they are not counted yet
	Messages    []admin.OutboxMessage
	Relays      []RelayState // that may publish messages of the key of Filter
	Reports     bool         // whether relays report
	More        bool
	Next, CSV   string
}

func (d *Dashboard) outboxPage(r *request) error {
	values := r.URL.Query()
	q := admin.BlockedKeysQuery{Transport: values.Get("transport"), Key: values.Get("key")}
	var err error
	if q.After, err = parseMark(values.Get("blocked")); err != nil {
		return err
	}
	// At once: each reads all messages on SQLite, which has no index on keys.
	var v outboxView
	var unread error
	var reading sync.WaitGroup
	reading.Go(func() { v, unread = d.readOutbox(r.Context(), values) })
	blocked, more, err := upTo(blockedPage, func(limit int) ([]admin.BlockedKey, error) {
		q.Limit = limit
		return d.db.BlockedKeys(r.Context(), q)
	})
	reading.Wait()
	if err := cmp.Or(unread, err); err != nil {
		return err
	}
	v.Blocked = blocked
	deadline := time.Now().Add(patience)
	stats, _, err := d.figures(r.Context(), patience)
	if err != nil {
		return err
	}
	v.Transports = stats.outbox
	if v.More {
		values.Set("after", outboxPlace(v.Messages[len(v.Messages)-1]))
		v.Next = "/outbox?" + values.Encode()
	}
	v.CSV = "?" + values.Encode()
	values = r.URL.Query()
	if more {
		values.Set("blocked", markOf(v.Blocked[len(v.Blocked)-1]))
		v.NextBlocked = "/outbox?" + values.Encode()
	}
	if v.CountedAt, err = d.countWaiting(r.Context(), time.Until(deadline), q.Key, v.Blocked); err != nil {
		return err
	}
	if v.Filter.Key != "" && len(v.Messages) > 0 {
		if v.Relays, err = d.relaysOf(r.Context(), v.Messages); err != nil {
			return err
		}
		v.Reports = d.keepsReports()
	}
	return d.livePage(r, "outbox", "Outbox", v)
}

// relaysOf returns the relays of the transports of messages. One of them locks the bucket of a
// key while it publishes from it.
func (d *Dashboard) relaysOf(ctx context.Context, messages []admin.OutboxMessage) (all []RelayState, err error) {
	relays, err := d.db.Relays(ctx)
	for _, r := range relays {
		if slices.ContainsFunc(messages, func(m admin.OutboxMessage) bool { return m.Transport == r.Transport }) {
			all = append(all, stateOfRelay(r))
		}
	}
	return all, err
}

// readOutbox reads the messages that the parameters of an address select.
func (d *Dashboard) readOutbox(ctx context.Context, values url.Values) (v outboxView, err error) {
	v.Filter = admin.OutboxQuery{Transport: values.Get("transport"), Key: values.Get("key"), Name: values.Get("name")}
	rest := maps.Clone(values)
	if _, err := strconv.ParseInt(values.Get("after"), 10, 64); err != nil {
		if v.Filter.Behind, err = decodePlace[admin.OutboxMessage](values.Get("after")); err != nil {
			return v, err
		}
		rest.Del("after") // the rest is that of lists
	}
	p, err := parsePage(rest)
	if err != nil {
		return v, err
	}
	v.Filter.After = p.After
	v.Messages, v.More, err = upTo(p.Limit, func(limit int) ([]admin.OutboxMessage, error) {
		q := v.Filter
		q.Limit = limit
		return d.db.Outbox(ctx, q)
	})
	return v, err
}

// outboxPlace is the place of a message in the list, in an address.
func outboxPlace(m admin.OutboxMessage) string {
	return encodePlace(struct {
		Row     int64      `json:"row"`
		Key     string     `json:"key"`
		DueAt   *time.Time `json:"due_at,omitempty"`
		Blocked bool       `json:"blocked"`
	}{m.Row, m.Key, m.DueAt, m.Blocked})
}

// blockedPage is how many blocked entries a page shows.
const blockedPage = 100

// A mark is the place of an entry in the list, in an address.
type mark struct {
	Transport, Route, Key string
	Row                   int64
	Since                 time.Time
}

func markOf(k admin.BlockedKey) string {
	return encodePlace(mark{k.Transport, k.Route, k.Key, k.Row, k.FirstFailedAt})
}

// parseMark returns the entry of a mark, or nil for none.
func parseMark(text string) (*admin.BlockedKey, error) {
	m, err := decodePlace[mark](text)
	if m == nil {
		return nil, err
	}
	return &admin.BlockedKey{Transport: m.Transport, Route: m.Route, Key: m.Key, Row: m.Row, FirstFailedAt: m.Since}, nil
}

// encodePlace returns a place in a list without numbers, for an address.
func encodePlace(place any) string {
	text, _ := json.Marshal(place) // always possible
	return base64.RawURLEncoding.EncodeToString(text)
}

// decodePlace returns the place in an address, or nil for none.
func decodePlace[T any](text string) (*T, error) {
	if text == "" {
		return nil, nil
	}
	place := new(T)
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(decoded, place)
	}
	if err != nil {
		return nil, bad("after: no place in this list", "leave it out for the first page")
	}
	return place, nil
}

// A blockedID names an entry.
type blockedID struct {
	transport, route, key string
	row                   int64
}

func idOf(k admin.BlockedKey) blockedID { return blockedID{k.Transport, k.Route, k.Key, k.Row} }

// countWaiting sets Waiting and Parked of the entries of a key, or of all keys, which are zero
// until they are counted: see figureOf.
func (d *Dashboard) countWaiting(ctx context.Context, wait time.Duration, key string, entries []admin.BlockedKey) (at time.Time, err error) {
	switch {
	case len(entries) == 0:
		return time.Time{}, nil
	case key != "": // they come with their counts
		return time.Now(), nil
	}
	counted, at, err := figureOf(ctx, d.counts, "blocked", wait, func(ctx context.Context) (map[blockedID]admin.BlockedKey, error) {
		all, err := d.db.Blocked(ctx, "", 0)
		byID := make(map[blockedID]admin.BlockedKey, len(all))
		for _, k := range all {
			byID[idOf(k)] = k
		}
		return byID, err
	})
	for i, k := range entries {
		entries[i].Waiting, entries[i].Parked = counted[idOf(k)].Waiting, counted[idOf(k)].Parked
	}
	return at, err
}

// Routed reports whether the route of the first message is blocked, and no key.
func (v outboxView) Routed() bool {
	return len(v.Blocked) == 0 && len(v.Messages) > 0 && v.Messages[0].Blocked && v.Messages[0].DueAt == nil
}

// blockedLink is the address that asks for the release of a blocked entry.
func blockedLink(k admin.BlockedKey) string {
	row := ""
	if k.Row != 0 {
		row = strconv.FormatInt(k.Row, 10)
	}
	return link("/outbox/release", "transport", k.Transport, "key", k.Key, "route", k.Route, "row", row)
}

// parseRelease reads which blocked entries to release.
func parseRelease(values url.Values) (q admin.BlockedQuery, err error) {
	q = admin.BlockedQuery{Transport: values.Get("transport"), Key: values.Get("key"), Route: values.Get("route"), SkipHead: values.Get("skip_head") == "true"}
	if text := values.Get("row"); text != "" {
		if q.Row, err = strconv.ParseInt(text, 10, 64); err != nil || q.Row <= 0 {
			return q, bad("row: "+strconv.Quote(text)+" is not the number of a message", "the list has the numbers")
		}
	}
	return q, checkRelease(q, values.Get("all") == "true")
}

func checkRelease(q admin.BlockedQuery, all bool) error {
	selected := 0
	for _, is := range []bool{q.Key != "", q.Route != "", q.Row != 0, all} {
		if is {
			selected++
		}
	}
	switch {
	case selected != 1:
		return bad("release what?", "give one of key, route, row and all=true, and a transport to narrow it down")
	case q.Route != "" && q.SkipHead:
		return bad("a route has no refused message to skip", "leave skip_head out")
	}
	return nil
}

// releaseView is the data of the page that asks before a release.
type releaseView struct {
	Query   admin.BlockedQuery
	All     bool
	Found   []admin.BlockedKey
	Count   int
	Waiting int       // messages behind them
	At      time.Time // of Waiting; zero if it is not known
	Changed bool
}

// countRelease counts the entries of a release.
func (d *Dashboard) countRelease(ctx context.Context, q admin.BlockedQuery) (v releaseView, err error) {
	blocked, err := d.db.BlockedKeys(ctx, admin.BlockedKeysQuery{Transport: q.Transport, Key: q.Key})
	if err != nil {
		return v, err
	}
	if v.At, err = d.countWaiting(ctx, patience, q.Key, blocked); err != nil {
		return v, err
	}
	v.Query, v.All = q, q.Key == "" && q.Route == "" && q.Row == 0
	for _, k := range blocked {
		if v.All || k.Key == q.Key && k.Route == q.Route && k.Row == q.Row {
			v.Count++
			v.Waiting += k.Waiting
			if len(v.Found) < 20 {
				v.Found = append(v.Found, k)
			}
		}
	}
	if v.Count == 0 {
		return v, &Error{http.StatusNotFound, "nothing of that is blocked", "a relay may have published it meanwhile"}
	}
	return v, nil
}

func (d *Dashboard) confirmRelease(r *request) error {
	q, err := parseRelease(r.URL.Query())
	if err != nil {
		return err
	}
	v, err := d.countRelease(r.Context(), q)
	if err != nil {
		return err
	}
	return d.page(r, "release", "Release", v)
}

func (d *Dashboard) release(r *request) error {
	q, err := parseRelease(r.PostForm)
	if err != nil {
		return err
	}
	v, err := d.countRelease(r.Context(), q)
	if err != nil {
		return err
	}
	if r.PostForm.Get("count") != strconv.Itoa(v.Count) {
		v.Changed = true
		return d.page(r, "release", "Release", v)
	}
	id, err := d.startBlocked(r, q, v.Count)
	if err != nil {
		return err
	}
	return d.redirect(r, "/operations/"+strconv.Itoa(id))
}

func (d *Dashboard) startBlocked(r *request, q admin.BlockedQuery, total int) (int, error) {
	return d.startRelease(r, releaseKind, q, total, func(ctx context.Context) (int, error) { return d.db.Release(ctx, q) })
}
