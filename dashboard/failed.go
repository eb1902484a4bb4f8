package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// groupsView is the data of the page of the groups of dead letters.
type groupsView struct {
	Filter      failedFilter
	Groups      []admin.FailedGroup // of the page
	All         int                 // groups of all pages
	Messages    int                 // of all groups
	At          time.Time           // of the counts; zero if they are not known yet
	First, Next string              // addresses of pages

	days map[groupKind]day
}

// A groupKind tells groups apart: by the fingerprint, or by the error of those without one.
type groupKind struct{ fingerprint, error string }

// kindOf returns the kind of a group, or of one of its hours.
func kindOf(fingerprint, text string) groupKind {
	if fingerprint != "" {
		text = ""
	}
	return groupKind{fingerprint, text}
}

// A day is how many dead letters of a group failed in each of the last 24 hours, the present
// one last.
type day [24]int

// Total is the number of all.
func (d day) Total() (n int) {
	for _, messages := range d {
		n += messages
	}
	return n
}

// A bar is a part of a drawing of 96 by 24 units.
type bar struct{ X, Y, Height int }

// Bars draws the hours, the highest as high as the drawing.
func (d day) Bars() (bars []bar) {
	top := slices.Max(d[:])
	for i, n := range d {
		if n > 0 {
			height := max(1, 24*n/top)
			bars = append(bars, bar{4 * i, 24 - height, height})
		}
	}
	return bars
}

// Day returns the last 24 hours of a group.
func (v groupsView) Day(g admin.FailedGroup) day { return v.days[kindOf(g.Fingerprint, g.Error)] }

// Counting reports whether the counts are not known yet.
func (v groupsView) Counting() bool { return v.At.IsZero() }

func (d *Dashboard) groupsPage(r *request) error {
	values := r.URL.Query()
	after, err := parseGroupPlace(values.Get("after"))
	if err != nil {
		return err
	}
	values.Del("after") // the rest is that of lists
	p, err := parsePage(values)
	if err != nil {
		return err
	}
	v, err := d.readGroups(r.Context(), values, patience)
	if err != nil {
		return err
	}
	if after != nil {
		v.First = "/failed?" + values.Encode()
	}
	var more bool
	if v.Groups, more = pageOfGroups(v.Groups, after, p.Limit); more {
		values.Set("after", placeOf(v.Groups[len(v.Groups)-1]).String())
		v.Next = "/failed?" + values.Encode()
	}
	return d.livePage(r, "groups", "Dead letters", v)
}

// A groupPlace is the place of a group in their order: by the last failure, the latest first,
// and of several at once by the number of the last dead letter.
type groupPlace struct{ at, number int64 }

func placeOf(g admin.FailedGroup) groupPlace {
	return groupPlace{g.LastFailedAt.UnixMicro(), g.Example}
}

func (p groupPlace) String() string { return fmt.Sprintf("%d.%d", p.at, p.number) }

// compare is negative if p comes before other.
func (p groupPlace) compare(other groupPlace) int {
	return cmp.Or(cmp.Compare(other.at, p.at), cmp.Compare(other.number, p.number))
}

// parseGroupPlace reads what String has written; nothing is nil, the first page.
func parseGroupPlace(text string) (*groupPlace, error) {
	if text == "" {
		return nil, nil
	}
	at, number, _ := strings.Cut(text, ".")
	a, err := strconv.ParseInt(at, 10, 64)
	n, err2 := strconv.ParseInt(number, 10, 64)
	if err != nil || err2 != nil {
		return nil, bad("after: "+strconv.Quote(text)+" is not the place of a group", "leave it out for the first page")
	}
	return &groupPlace{a, n}, nil
}

// pageOfGroups returns up to limit of all groups after a place, in their order, and whether
// there are more.
func pageOfGroups(all []admin.FailedGroup, after *groupPlace, limit int) (page []admin.FailedGroup, more bool) {
	for _, g := range all {
		if after == nil || after.compare(placeOf(g)) < 0 {
			page = append(page, g)
		}
	}
	slices.SortFunc(page, func(a, b admin.FailedGroup) int { return placeOf(a).compare(placeOf(b)) })
	return page[:min(limit, len(page))], len(page) > limit
}

// readGroups reads all groups, and waits so long for the counts.
func (d *Dashboard) readGroups(ctx context.Context, values url.Values, wait time.Duration) (v groupsView, err error) {
	if v.Filter, err = parseFilter(values); err != nil {
		return v, err
	}
	q, err := v.Filter.query()
	if err != nil {
		return v, err
	}
	type counted struct {
		groups []admin.FailedGroup
		days   map[groupKind]day
	}
	c, at, err := figureOf(ctx, d.counts, "groups?"+v.Filter.values().Encode(), wait, func(ctx context.Context) (c counted, err error) {
		if c.groups, err = d.db.FailedGroups(ctx, q); err == nil {
			c.days, err = d.days(ctx, q)
		}
		return c, err
	})
	if err != nil {
		return v, err
	}
	v.Groups, v.days, v.At = c.groups, c.days, at
	v.All = len(v.Groups)
	for _, g := range v.Groups {
		v.Messages += g.Messages
	}
	return v, nil
}

// days reads the last 24 hours of all groups.
func (d *Dashboard) days(ctx context.Context, q admin.FailedQuery) (map[groupKind]day, error) {
	hours, err := d.db.FailedHours(ctx, q, time.Now())
	days := map[groupKind]day{}
	for _, h := range hours {
		kind := kindOf(h.Fingerprint, h.Error)
		one := days[kind]
		one[len(one)-1-h.Ago] = h.Messages
		days[kind] = one
	}
	return days, err
}

// GroupLink is the address of the messages of a group, within the filter of its page, or of
// all for the zero group. The error of a relay's group is its filter.
func (v groupsView) GroupLink(path string, g admin.FailedGroup) string {
	f := v.Filter
	if g.Fingerprint != "" {
		f.Fingerprint = g.Fingerprint
	}
	if g.Example != 0 && g.Fingerprint == "" {
		f.Source, f.Error = admin.FromOutbox, g.Error
	}
	return path + "?" + f.values().Encode()
}

// failedView is the data of a list of dead letters.
type failedView struct {
	Filter      failedFilter
	Messages    []admin.FailedMessage
	More        bool
	First, Next string // addresses of pages
}

// Link is the address of a page for all messages of the filter.
func (v failedView) Link(path string) string {
	if v.Filter.Empty() && path != "/failed" {
		return path + "?all=true"
	}
	return path + "?" + v.Filter.values().Encode()
}

func (d *Dashboard) failedPage(r *request) error {
	values := r.URL.Query()
	v, err := d.readFailed(r.Context(), values)
	if err != nil {
		return err
	}
	if values.Has("after") {
		first := r.URL.Query()
		first.Del("after")
		v.First = "/failed/list?" + first.Encode()
	}
	if v.More {
		values.Set("after", strconv.FormatInt(v.Messages[len(v.Messages)-1].Number, 10))
		v.Next = "/failed/list?" + values.Encode()
	}
	return d.page(r, "failed", "Dead letters", v)
}

func (d *Dashboard) readFailed(ctx context.Context, values url.Values) (v failedView, err error) {
	p, err := parsePage(values)
	if err != nil {
		return v, err
	}
	if v.Filter, err = parseFilter(values); err != nil {
		return v, err
	}
	q, err := v.Filter.query()
	if err != nil {
		return v, err
	}
	q.After = p.After
	v.Messages, v.More, err = upTo(p.Limit, func(limit int) ([]admin.FailedMessage, error) {
		q.Limit = limit
		return d.db.Failed(ctx, q)
	})
	return v, err
}

// oneFailed returns the dead letter of a path, removed or not.
func (d *Dashboard) oneFailed(r *request) (m admin.FailedMessage, err error) {
	number, err := strconv.ParseInt(r.PathValue("number"), 10, 64)
	if err != nil || number <= 0 {
		return m, &Error{http.StatusNotFound, "there is no such dead letter", "the list has the numbers"}
	}
	for _, state := range []string{"", admin.Removed} {
		found, err := d.db.Failed(r.Context(), admin.FailedQuery{Numbers: []int64{number}, State: state})
		if err != nil {
			return m, err
		}
		if len(found) == 1 {
			return found[0], nil
		}
	}
	return m, &Error{http.StatusNotFound, fmt.Sprintf("there is no dead letter %d", number), "it has been handled since, or never was"}
}

// attempts returns the failed attempts of workers at m.
func (d *Dashboard) attempts(ctx context.Context, m admin.FailedMessage) ([]admin.FailedAttempt, error) {
	if m.Source != admin.FromWorker {
		return nil, nil
	}
	return d.db.FailedAttempts(ctx, m.Transport, m.ID)
}

// lookup returns the inbox entries of a message id or an idempotency key; none is no error.
func (d *Dashboard) lookup(ctx context.Context, idOrKey string) ([]admin.InboxEntry, error) {
	entries, err := d.db.InboxLookup(ctx, idOrKey)
	if errors.Is(err, waybill.ErrNotFound) {
		err = nil
	}
	return entries, err
}
