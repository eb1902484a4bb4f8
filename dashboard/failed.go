package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// groupsView is the data of the page of the groups of dead letters.
type groupsView struct {
	Filter   failedFilter
	Groups   []admin.FailedGroup
	Messages int
	At       time.Time // of the counts; zero if they are not known yet
}

// Counting reports whether the counts are not known yet.
func (v groupsView) Counting() bool { return v.At.IsZero() }

func (d *Dashboard) groupsPage(r *request) error {
	v, err := d.readGroups(r.Context(), r.URL.Query(), patience)
	if err != nil {
		return err
	}
	return d.livePage(r, "groups", "Dead letters", v)
}

// readGroups waits so long for the counts.
func (d *Dashboard) readGroups(ctx context.Context, values url.Values, wait time.Duration) (v groupsView, err error) {
	if v.Filter, err = parseFilter(values); err != nil {
		return v, err
	}
	q, err := v.Filter.query()
	if err != nil {
		return v, err
	}
	v.Groups, v.At, err = figureOf(ctx, d.counts, "groups?"+v.Filter.values().Encode(), wait, func(ctx context.Context) ([]admin.FailedGroup, error) {
		return d.db.FailedGroups(ctx, q)
	})
	if err != nil {
		return v, err
	}
	for _, g := range v.Groups {
		v.Messages += g.Messages
	}
	return v, nil
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
