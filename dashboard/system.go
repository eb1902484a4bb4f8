package dashboard

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"

	"github.com/waybill-go/waybill/admin"
)

func (d *Dashboard) auditPage(r *request) error {
	values := r.URL.Query()
	entries, more, err := d.readAudit(r.Context(), values)
	if err != nil {
		return err
	}
	v := auditView{Entries: entries}
	if more {
		values.Set("after", strconv.FormatInt(entries[len(entries)-1].Number, 10))
		v.Next = "/audit?" + values.Encode()
	}
	return d.page(r, "audit", "Audit", v)
}

// auditView is the data of the page of the audit.
type auditView struct {
	Entries []admin.AuditEntry
	Next    string
}

// readAudit reads the entries after a number, the newest first, without the bodies that edits have kept.
func (d *Dashboard) readAudit(ctx context.Context, values url.Values) (entries []admin.AuditEntry, more bool, err error) {
	p, err := parsePage(values)
	if err != nil {
		return nil, false, err
	}
	entries, more, err = upTo(p.Limit, func(limit int) ([]admin.AuditEntry, error) { return d.db.Audit(ctx, p.After, limit) })
	for i, e := range entries {
		var filter map[string]json.RawMessage
		if json.Unmarshal(e.Filter, &filter) == nil && filter["original_body_base64"] != nil {
			filter["original_body_base64"] = json.RawMessage(`"` + redacted + `"`)
			entries[i].Filter, _ = json.Marshal(filter)
		}
	}
	return entries, more, err
}

// systemView is the data of the page of the system.
type systemView struct {
	Findings []admin.Finding
	Unknown  bool // the database has no checks
	Settings []Setting
	Schema   admin.SchemaStatus
}

func (d *Dashboard) systemPage(r *request) error {
	v, err := d.readSystem(r.Context())
	if err != nil {
		return err
	}
	return d.page(r, "system", "System", v)
}

func (d *Dashboard) readSystem(ctx context.Context) (v systemView, err error) {
	v.Settings = d.cfg.Settings
	if v.Schema, err = d.db.SchemaStatus(ctx); err != nil {
		return v, err
	}
	findings := d.cfg.Findings
	if examiner, ok := d.db.(admin.Examiner); findings == nil && ok {
		findings = examiner.Findings
	}
	if findings == nil {
		v.Unknown = true
		return v, nil
	}
	v.Findings, err = findings(ctx)
	return v, err
}
