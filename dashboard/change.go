package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// The kinds of operations on dead letters, after the commands.
const (
	retryKind  = "failed retry"
	removeKind = "failed remove"
)

// changeView is the data of the page that asks before a change of dead letters.
type changeView struct {
	Kind    string
	Path    string // of the form
	Filter  failedFilter
	Fields  url.Values // hidden fields of the form
	Count   int
	Groups  []admin.FailedGroup
	Changed bool // since the last count
}

// Retry reports whether the change is a retry.
func (v changeView) Retry() bool { return v.Kind == retryKind }

func (d *Dashboard) confirmRetry(r *request) error {
	return d.confirm(r, retryKind, r.URL.Query(), false)
}

func (d *Dashboard) confirmRemove(r *request) error {
	return d.confirm(r, removeKind, r.URL.Query(), false)
}

func (d *Dashboard) retry(r *request) error { return d.change(r, retryKind) }

func (d *Dashboard) remove(r *request) error { return d.change(r, removeKind) }

// selection is the part of an address or a form that selects dead letters.
func selection(values url.Values) (f failedFilter, err error) {
	if f, err = parseFilter(values); err != nil {
		return f, err
	}
	filter := f
	filter.Numbers, filter.All = nil, false
	switch {
	case f.Empty():
		return f, bad("which messages? nothing is selected", "mark some, or use a filter or all=true")
	case len(f.Numbers) > maxPage:
		return f, bad("too many numbers", "use a filter")
	case f.All && (len(f.Numbers) > 0 || !filter.Empty()):
		return f, bad("all=true excludes numbers and filters", "leave it out: it would not be all")
	case f.State == admin.Removed || f.State == admin.Retrying:
		return f, bad("messages that are "+f.State+" cannot be changed", "choose skipped or failed ones")
	}
	return f, nil
}

// counted counts exactly the dead letters of a change, and the moment just after
// the last of them has failed.
func (d *Dashboard) counted(ctx context.Context, f failedFilter) (n int, until time.Time, groups []admin.FailedGroup, err error) {
	q, err := f.query()
	if err != nil {
		return 0, until, nil, err
	}
	for _, state := range []string{admin.Skipped, admin.Failed} {
		if f.State != "" && f.State != state {
			continue
		}
		q.State = state
		found, err := d.db.FailedGroups(ctx, q)
		if err != nil {
			return 0, until, nil, err
		}
		for _, g := range found {
			n += g.Messages
			if after := g.LastFailedAt.Add(time.Microsecond); after.After(until) {
				until = after
			}
		}
		groups = append(groups, found...)
	}
	if n == 0 {
		return 0, until, nil, &Error{http.StatusNotFound, "no dead letter is selected that can be changed", "they have been handled, retried or removed meanwhile"}
	}
	slices.SortStableFunc(groups, func(a, b admin.FailedGroup) int { return b.Messages - a.Messages })
	return n, until, groups, nil
}

// confirm answers with the exact count of a change.
func (d *Dashboard) confirm(r *request, kind string, values url.Values, changed bool) error {
	f, err := selection(values)
	if err != nil {
		return err
	}
	n, until, groups, err := d.counted(r.Context(), f)
	if err != nil {
		return err
	}
	if f.Until == "" && len(f.Numbers) == 0 {
		f.Until, f.All = until.Format(time.RFC3339Nano), false // without later failures
	}
	fields := f.values()
	fields.Set("count", strconv.Itoa(n))
	return d.page(r, "change", map[string]string{retryKind: "Retry", removeKind: "Remove"}[kind], changeView{
		Kind: kind, Path: "/" + strings.ReplaceAll(kind, " ", "/"), Filter: f, Fields: fields,
		Count: n, Groups: groups[:min(len(groups), 20)], Changed: changed,
	})
}

// selected reads the selection of a form, and counts it: see counted.
func (d *Dashboard) selected(r *request) (f failedFilter, n int, until time.Time, err error) {
	if f, err = selection(r.PostForm); err != nil {
		return f, 0, until, err
	}
	n, until, _, err = d.counted(r.Context(), f)
	return f, n, until, err
}

// change begins a change that was confirmed with its count. Another count is shown first.
func (d *Dashboard) change(r *request, kind string) error {
	f, n, until, err := d.selected(r)
	if err != nil {
		return err
	}
	if r.PostForm.Get("count") != strconv.Itoa(n) {
		return d.confirm(r, kind, r.PostForm, true)
	}
	rate, err := parseRate(r.PostForm.Get("rate"))
	if err != nil {
		return err
	}
	id, err := d.startChange(r, kind, f, n, until, rate, r.PostForm.Get("as_new") == "true")
	if err != nil {
		return err
	}
	return d.redirect(r, "/operations/"+strconv.Itoa(id))
}

// startChange begins the operation on n messages, which have failed before until.
func (d *Dashboard) startChange(r *request, kind string, f failedFilter, n int, until time.Time, rate float64, asNew bool) (int, error) {
	q, err := f.query()
	if err != nil {
		return 0, err
	}
	if q.Until.IsZero() || until.Before(q.Until) {
		q.Until = until
	}
	do := d.db.RemoveFailed
	switch {
	case kind == retryKind && asNew:
		do = d.db.RetryFailedAsNew
	case kind == retryKind:
		do = d.db.RetryFailed
	}
	action := r.action(f.audited())
	op := Operation{Kind: kind, By: action.Actor, What: string(f.audited()), Total: n, Rate: rate}
	return d.operations.start(op, d.log, func(ctx context.Context, update func(func(*Operation))) error {
		return d.batches(admin.WithAction(ctx, action), q, rate, do, update)
	})
}

// parseRate reads a number of messages a second; nothing means no limit.
func parseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n < 0.01 || n > 1e6 {
		return 0, bad("rate: "+strconv.Quote(text)+" is not a number of messages a second", "such as 50, or nothing for no limit")
	}
	return n, nil
}
