package dashboard

import (
	"context"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// inboxView is the data of the page of the inbox.
type inboxView struct {
	ID        string
	Entries   []admin.InboxEntry // of ID
	Handler   string
	Latest    []admin.InboxEntry
	Next      string // address of the next page of Latest
	Stats     []admin.InboxStats
	At        time.Time // of Stats; zero if they are not known yet
	Retention string
	Causation *causationView // of the message with the id; nil if nothing can be known
}

func (d *Dashboard) inboxPage(r *request) error {
	values := r.URL.Query()
	v, err := d.readInbox(r.Context(), strings.TrimSpace(values.Get("id")))
	if err != nil {
		return err
	}
	if v.ID == "" {
		var more bool
		v.Handler = values.Get("handler")
		if v.Latest, more, err = d.latestEntries(r.Context(), values); err != nil {
			return err
		}
		if more {
			values.Set("after", encodePlace(v.Latest[len(v.Latest)-1]))
			v.Next = "/inbox?" + values.Encode()
		}
	}
	id, err := waybill.ParseMessageID(v.ID)
	if err != nil && len(v.Entries) > 0 {
		id, err = v.Entries[0].MessageID, nil // of an idempotency key
	}
	if err == nil {
		if v.Causation, err = d.causation(r.Context(), r.who, id); err != nil {
			return err
		}
	}
	return d.page(r, "inbox", "Inbox", v)
}

// latestEntries returns a page of the latest entries of the inbox.
func (d *Dashboard) latestEntries(ctx context.Context, values url.Values) (entries []admin.InboxEntry, more bool, err error) {
	q := admin.InboxQuery{Handler: values.Get("handler")}
	if q.After, err = decodePlace[admin.InboxEntry](values.Get("after")); err != nil {
		return nil, false, err
	}
	rest := maps.Clone(values)
	rest.Del("after") // the rest is that of lists
	p, err := parsePage(rest)
	if err != nil {
		return nil, false, err
	}
	return upTo(p.Limit, func(limit int) ([]admin.InboxEntry, error) {
		q.Limit = limit
		return d.db.InboxEntries(ctx, q)
	})
}

func (d *Dashboard) readInbox(ctx context.Context, id string) (v inboxView, err error) {
	v.ID = id
	if id != "" {
		if v.Entries, err = d.lookup(ctx, id); err != nil {
			return v, err
		}
	}
	retention, err := d.db.InboxRetention(ctx)
	if err != nil {
		return v, err
	}
	if retention > 0 {
		v.Retention = duration(retention)
	}
	f, at, err := d.figures(ctx, patience)
	v.Stats, v.At = f.inbox, at
	return v, err
}
