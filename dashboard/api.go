package dashboard

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// apiRoutes are the routes of the JSON API, which openapi.json describes.
func (d *Dashboard) apiRoutes() []route {
	return []route{
		{"GET " + apiPath + "overview", Viewer, d.apiOverview},
		{"GET " + apiPath + "history", Viewer, d.apiHistory},
		{"GET " + apiPath + "outbox", Viewer, d.apiOutbox},
		{"GET " + apiPath + "blocked", Viewer, d.apiBlocked},
		{"POST " + apiPath + "blocked/release", Operator, d.apiRelease},
		{"GET " + apiPath + "failed", Viewer, d.apiFailed},
		{"GET " + apiPath + "failed/groups", Viewer, d.apiGroups},
		{"GET " + apiPath + "failed/{number}", Viewer, d.apiMessage},
		{"POST " + apiPath + "failed/retry", Operator, func(r *request) error { return d.apiChange(r, retryKind) }},
		{"POST " + apiPath + "failed/remove", Admin, func(r *request) error { return d.apiChange(r, removeKind) }},
		{"GET " + apiPath + "retries", Viewer, d.apiRetries},
		{"GET " + apiPath + "inbox", Viewer, d.apiInbox},
		{"GET " + apiPath + "messages", Viewer, d.apiMessages},
		{"POST " + apiPath + "failed/{number}/edit", Operator, d.apiEdit},
		{"POST " + apiPath + "retries/release", Operator, d.apiReleaseParked},
		{"GET " + apiPath + "stats", Viewer, d.apiStats},
		{"GET " + apiPath + "workers", Viewer, d.apiWorkers},
		{"POST " + apiPath + "workers/{id}/stop", Admin, d.apiStop},
		{"GET " + apiPath + "workers/paused", Viewer, d.apiPaused},
		{"POST " + apiPath + "workers/pause", Admin, d.apiPause},
		{"POST " + apiPath + "workers/resume", Admin, d.apiResume},
		{"GET " + apiPath + "schedules", Viewer, d.apiSchedules},
		{"POST " + apiPath + "schedules/trigger", Operator, d.apiTrigger},
		{"GET " + apiPath + "audit", Viewer, d.apiAudit},
		{"GET " + apiPath + "operations", Viewer, d.apiOperations},
		{"GET " + apiPath + "operations/{id}", Viewer, d.apiOperation},
		{"POST " + apiPath + "operations/{id}/cancel", Operator, d.apiCancel},
		{"GET " + apiPath + "openapi.json", Viewer, d.apiDescription},
	}
}

// list is the answer of the API with a list: items, and the after of the next page, a number
// or a text.
type list[T any] struct {
	Items []T  `json:"items"`
	More  bool `json:"more"`
	After any  `json:"after,omitempty"`
}

// answer writes a list, as CSV if the address asks for it.
func answer[T any](r *request, items []T, more bool, after func(T) any) error {
	l := list[T]{Items: items, More: more}
	if l.Items == nil {
		l.Items = []T{}
	}
	if more && after != nil {
		l.After = after(items[len(items)-1])
	}
	switch format := r.URL.Query().Get("format"); format {
	case "", "json":
		writeJSON(r.w, http.StatusOK, l)
		return nil
	case "csv":
		return writeCSV(r.w, l.Items, l.After)
	default:
		return bad("format: unknown format "+strconv.Quote(format), "json or csv")
	}
}

// writeCSV writes items with a line of the names of their JSON fields. A cell that a
// spreadsheet would take for a formula begins with an apostrophe.
func writeCSV[T any](w http.ResponseWriter, items []T, after any) error {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="waybill.csv"`)
	if after != nil {
		w.Header().Set("X-Next-After", fmt.Sprint(after))
	}
	out := csv.NewWriter(w)
	header := columns[T]()
	_ = out.Write(header) // Error has it
	for _, item := range items {
		text, err := json.Marshal(item)
		if err != nil {
			return err
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			return err
		}
		row := make([]string, len(header))
		for i, name := range header {
			row[i] = cell(fields[name])
		}
		_ = out.Write(row) // Error has it
	}
	out.Flush()
	return out.Error()
}

func cell(value json.RawMessage) string {
	text := string(value)
	if text == "null" {
		return ""
	}
	if s := ""; json.Unmarshal(value, &s) == nil {
		if text = s; s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
			text = "'" + s
		}
	}
	return text
}

func (d *Dashboard) apiOverview(r *request) error {
	o, err := d.readOverview(r.Context(), patient)
	if err == nil {
		writeJSON(r.w, http.StatusOK, o)
	}
	return err
}

func (d *Dashboard) apiOutbox(r *request) error {
	v, err := d.readOutbox(r.Context(), r.URL.Query())
	if err != nil {
		return err
	}
	return answer(r, v.Messages, v.More, func(m admin.OutboxMessage) any { return outboxPlace(m) })
}

func (d *Dashboard) apiBlocked(r *request) error {
	values := r.URL.Query()
	q := admin.BlockedKeysQuery{Transport: values.Get("transport"), Key: values.Get("key")}
	var err error
	if q.After, err = parseMark(values.Get("after")); err != nil {
		return err
	}
	values.Del("after") // the rest is that of lists
	p, err := parsePage(values)
	if err != nil {
		return err
	}
	keys, more, err := upTo(p.Limit, func(limit int) ([]admin.BlockedKey, error) {
		q.Limit = limit
		return d.db.BlockedKeys(r.Context(), q)
	})
	if err != nil {
		return err
	}
	if _, err := d.countWaiting(r.Context(), patient, q.Key, keys); err != nil {
		return err
	}
	return answer(r, keys, more, func(k admin.BlockedKey) any { return markOf(k) })
}

func (d *Dashboard) apiFailed(r *request) error {
	v, err := d.readFailed(r.Context(), r.URL.Query())
	if err != nil {
		return err
	}
	return answer(r, v.Messages, v.More, func(m admin.FailedMessage) any { return m.Number })
}

func (d *Dashboard) apiGroups(r *request) error {
	v, err := d.readGroups(r.Context(), r.URL.Query(), patient)
	if err != nil {
		return err
	}
	return answer(r, v.Groups, false, nil)
}

func (d *Dashboard) apiMessage(r *request) error {
	v, err := d.readMessage(r)
	if err != nil {
		return err
	}
	headers := map[string]string{}
	for _, h := range v.Content.Headers {
		headers[h[0]] = h[1]
	}
	writeJSON(r.w, http.StatusOK, struct {
		admin.FailedMessage
		Hidden   string                `json:"hidden,omitempty"` // why there is no content
		Headers  map[string]string     `json:"headers,omitempty"`
		Body     string                `json:"body,omitempty"`
		Whole    bool                  `json:"whole"` // body is the body itself
		Attempts []admin.FailedAttempt `json:"attempts"`
	}{v.FailedMessage, v.Content.Hidden, headers, v.Content.Body, v.Content.Whole && v.Content.Text, v.Attempts})
	return nil
}

func (d *Dashboard) apiRetries(r *request) error {
	v, err := d.readRetries(r.Context(), r.URL.Query())
	if err != nil {
		return err
	}
	return answer(r, v.Messages, v.More, func(m admin.RetryingMessage) any { return m.Row })
}

func (d *Dashboard) apiInbox(r *request) error {
	id := r.URL.Query().Get("id")
	if id == "" {
		latest, more, err := d.latestEntries(r.Context(), r.URL.Query())
		if err != nil {
			return err
		}
		return answer(r, latest, more, func(e admin.InboxEntry) any { return encodePlace(e) })
	}
	entries, err := d.lookup(r.Context(), id)
	if err != nil {
		return err
	}
	return answer(r, entries, false, nil)
}

func (d *Dashboard) apiAudit(r *request) error {
	entries, more, err := d.readAudit(r.Context(), r.URL.Query())
	if err != nil {
		return err
	}
	return answer(r, entries, more, func(e admin.AuditEntry) any { return e.Number })
}

func (d *Dashboard) apiOperations(r *request) error {
	return answer(r, d.operations.list(), false, nil)
}

func (d *Dashboard) apiOperation(r *request) error {
	op, err := d.readOperation(r.Context(), r.PathValue("id"))
	if err == nil {
		writeJSON(r.w, http.StatusOK, op)
	}
	return err
}

func (d *Dashboard) apiCancel(r *request) error {
	if err := d.cancel(r); err != nil {
		return err
	}
	return d.apiOperation(r)
}

// confirmed checks the count of a form: without one the answer is the count.
func confirmed(r *request, n int) (bool, error) {
	switch r.PostForm.Get("count") {
	case "":
		writeJSON(r.w, http.StatusOK, map[string]int{"count": n})
		return false, nil
	case strconv.Itoa(n):
		return true, nil
	}
	return false, &Error{http.StatusConflict, fmt.Sprintf("the count is %d", n), "look at the messages again, and send count=" + strconv.Itoa(n)}
}

// apiChange is change without a page: a form with the filter and its count.
func (d *Dashboard) apiChange(r *request, kind string) error {
	f, n, until, err := d.selected(r)
	if err != nil {
		return err
	}
	if ok, err := confirmed(r, n); !ok {
		return err
	}
	rate, err := parseRate(r.PostForm.Get("rate"))
	if err != nil {
		return err
	}
	return d.begun(r)(d.startChange(r, kind, f, n, until, rate, r.PostForm.Get("as_new") == "true"))
}

func (d *Dashboard) apiRelease(r *request) error {
	q, err := parseRelease(r.PostForm)
	if err != nil {
		return err
	}
	v, err := d.countRelease(r.Context(), q)
	if err != nil {
		return err
	}
	if ok, err := confirmed(r, v.Count); !ok {
		return err
	}
	return d.begun(r)(d.startBlocked(r, q, v.Count))
}

// begun answers with the operation that has begun.
func (d *Dashboard) begun(r *request) func(id int, err error) error {
	return func(id int, err error) error {
		if err != nil {
			return err
		}
		op, err := d.operations.find(strconv.Itoa(id))
		if err == nil {
			writeJSON(r.w, http.StatusAccepted, op)
		}
		return err
	}
}

func (d *Dashboard) apiDescription(r *request) error {
	text, err := static.ReadFile("static/openapi.json")
	if err == nil {
		r.w.Header().Set("Content-Type", "application/json")
		http.ServeContent(r.w, r.Request, "", time.Time{}, strings.NewReader(string(text)))
	}
	return err
}

// exports are the addresses of the lists of a page, as CSV and JSON.
func exports(page string, values url.Values) (all [][2]string) {
	v := url.Values{}
	for key, value := range values {
		if key != "after" && key != "refresh" && key != "limit" {
			v[key] = value
		}
	}
	v.Set("limit", strconv.Itoa(maxPage))
	for _, name := range map[string][]string{
		"outbox": {"outbox", "blocked"}, "groups": {"failed/groups"}, "failed": {"failed"}, "retries": {"retries"}, "inbox": {"inbox"}, "audit": {"audit"}, "operations": {"operations"},
	}[page] {
		for _, format := range []string{"csv", "json"} {
			v.Set("format", format)
			all = append(all, [2]string{name + " as " + strings.ToUpper(format), apiPath + name + "?" + v.Encode()})
		}
	}
	return all
}
