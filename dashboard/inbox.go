package dashboard

import (
	"context"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// inboxView is the data of the page of the inbox.
type inboxView struct {
	ID        string
	Entries   []admin.InboxEntry
	Stats     []admin.InboxStats
	At        time.Time // of Stats; zero if they are not known yet
	Retention string
	Causation *causationView // of the message with the id; nil if nothing can be known
}

func (d *Dashboard) inboxPage(r *request) error {
	v, err := d.readInbox(r.Context(), strings.TrimSpace(r.URL.Query().Get("id")))
	if err != nil {
		return err
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
