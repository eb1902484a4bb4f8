package dashboard

import (
	"context"
	"slices"
	"strconv"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// causationView is the cause of a message and its effects, as far as they are stored.
type causationView struct {
	Cause       string // id of the message whose handler dispatched it; empty if it is not known
	Correlation string // shared by the messages of its conversation; empty if it is not known or not to be seen
	Stored      []admin.StoredMessage
	Caused      []admin.StoredMessage
	Limit       int // messages of each table that were searched
}

// stored returns the stored messages with an id or with it as causation id, as far as the user
// may see them: nothing is known where causation ids are hidden.
func (d *Dashboard) stored(ctx context.Context, user who, id waybill.MessageID) (found []admin.StoredMessage, known bool, err error) {
	db, ok := d.db.(admin.MessageFinder)
	if !ok || d.cfg.Redact.header(waybill.HeaderCausationID, "") == redacted {
		return nil, false, nil
	}
	found, err = db.FindMessages(ctx, id, admin.FindLimit)
	for i, m := range found {
		if m.CorrelationID != "" {
			found[i].CorrelationID = d.cfg.Redact.header(waybill.HeaderCorrelationID, m.CorrelationID)
		}
		if !user.Bodies { // nor headers; an id is no secret
			found[i].CorrelationID = ""
			if _, err := waybill.ParseMessageID(m.CausationID); err != nil {
				found[i].CausationID = ""
			}
		}
	}
	return found, true, err
}

// causation returns the causation of a message, or nil if nothing can be known.
func (d *Dashboard) causation(ctx context.Context, user who, id waybill.MessageID) (*causationView, error) {
	found, known, err := d.stored(ctx, user, id)
	if err != nil || !known {
		return nil, err
	}
	v := &causationView{Limit: admin.FindLimit}
	for _, m := range found {
		if m.ID != id {
			v.Caused = append(v.Caused, m)
			continue
		}
		v.Stored = append(v.Stored, m)
		v.Cause, v.Correlation = m.CausationID, m.CorrelationID
	}
	return v, nil
}

// from takes cause and correlation from the shown headers of a message.
func (v *causationView) from(headers [][2]string) {
	value := func(name string) string {
		if i := slices.IndexFunc(headers, func(h [2]string) bool { return h[0] == name }); i >= 0 {
			return headers[i][1]
		}
		return ""
	}
	if cause := value(waybill.HeaderCausationID); v != nil && cause != "" {
		v.Cause = cause
	}
	if correlation := value(waybill.HeaderCorrelationID); v != nil && correlation != "" {
		v.Correlation = correlation
	}
}

// storedLink is the address of the row of a message, or empty.
func storedLink(m admin.StoredMessage) string {
	switch m.Source {
	case admin.SourceFailed:
		return "/failed/" + strconv.FormatInt(m.Row, 10)
	case admin.SourceRetries:
		return attemptsLink(m.Transport, m.ID)
	case admin.SourceOutbox, admin.SourceDelayed:
		return link("/outbox", "key", m.Key, "name", m.Name)
	}
	return ""
}

// apiMessages lists the rows of a message and of its effects.
func (d *Dashboard) apiMessages(r *request) error {
	id, err := waybill.ParseMessageID(r.URL.Query().Get("id"))
	if err != nil {
		return bad("id: that is no message id", "a UUID or a ULID")
	}
	found, _, err := d.stored(r.Context(), r.who, id)
	if err != nil {
		return err
	}
	return answer(r, found, false, nil)
}
