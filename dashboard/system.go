package dashboard

import (
	"context"
	"encoding/json"
	"net/url"

	"github.com/waybill-go/waybill/admin"
)

func (d *Dashboard) auditPage(r *request) error {
	entries, err := d.readAudit(r.Context(), r.URL.Query())
	if err != nil {
		return err
	}
	return d.page(r, "audit", "Audit", entries)
}

// readAudit reads the newest entries, without the bodies that edits have kept.
func (d *Dashboard) readAudit(ctx context.Context, values url.Values) ([]admin.AuditEntry, error) {
	p, err := parsePage(values)
	if err != nil {
		return nil, err
	}
	entries, err := d.db.Audit(ctx, p.Limit)
	for i, e := range entries {
		var filter map[string]json.RawMessage
		if json.Unmarshal(e.Filter, &filter) == nil && filter["original_body_base64"] != nil {
			filter["original_body_base64"] = json.RawMessage(`"` + redacted + `"`)
			entries[i].Filter, _ = json.Marshal(filter)
		}
	}
	return entries, err
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
