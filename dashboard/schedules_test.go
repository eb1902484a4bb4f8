package dashboard_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/waysqlite"
)

func TestSchedulesAreListedWithTheirState(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	if _, text := f.get("/schedules"); !strings.Contains(text, "No process has run a schedule yet.") {
		t.Errorf("without schedules the page is\n%s", text)
	}
	db := f.db.(*waysqlite.DB)
	now := time.Now().UTC()
	late := admin.Schedule{Name: "late" + hostile, Spec: "every 1m0s", Missed: "skip", DoneUntil: now.Add(-3 * time.Minute), LastTick: new(now.Add(-3 * time.Minute)), NextTick: now.Add(-2 * time.Minute)}
	waiting := admin.Schedule{Name: "waiting", Spec: "30 2 * * * Europe/Berlin", Missed: "latest", DoneUntil: now, NextTick: now.Add(time.Hour)}
	for _, row := range []admin.Schedule{late, waiting} {
		err := db.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := db.ReplaceSchedule(ctx, tx, admin.Schedule{}, row)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, text := f.get("/schedules")
	for _, want := range []string{"overdue for 2m", "every 1m0s", "30 2 * * * Europe/Berlin", "none yet", `aria-current="page">Schedules`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "<script") {
		t.Errorf("the name of a schedule is no text:\n%s", text)
	}
	_, text = f.do("GET", "/api/v1/schedules", nil)
	for _, want := range []string{`"name":"waiting","spec":"30 2 * * * Europe/Berlin","missed":"latest","last_tick":null`, `"requested_at":null,"overdue_seconds":0}`, `"overdue_seconds":12`} {
		if !strings.Contains(text, want) {
			t.Errorf("the API has no %s in %s", want, text)
		}
	}
	if _, text = f.do("GET", "/api/v1/schedules?format=csv", nil); !strings.HasPrefix(text, "name,spec,missed,last_tick,next_tick,requested_at,overdue_seconds\n") {
		t.Errorf("the CSV begins with %.100s", text)
	}
}

// A schedule with a hostile name is triggered by its button, once, and by the API.
func TestScheduleIsTriggeredOnRequest(t *testing.T) {
	as := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	f := newFixture(t, dashboard.Config{Authenticate: bearerOf(t, map[string]dashboard.Principal{"v": {Name: "vera", Role: dashboard.Viewer}, "o": {Name: "otto", Role: dashboard.Operator}})})
	db := f.db.(*waysqlite.DB)
	now := time.Now().UTC()
	for _, name := range []string{"nightly" + hostile, "weekly"} {
		err := db.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			_, err := db.ReplaceSchedule(ctx, tx, admin.Schedule{}, admin.Schedule{Name: name, Spec: "30 2 * * *", Missed: "latest", DoneUntil: now, NextTick: now.Add(time.Hour)})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const button = "Send one message now"
	if _, text := f.do("GET", "/schedules", nil, as("v")); strings.Contains(text, button) || !strings.Contains(text, "nightly&#34;&gt;") {
		t.Errorf("the page of a viewer:\n%s", text)
	}
	if _, text := f.do("GET", "/schedules", nil, as("o")); strings.Count(text, button) != 2 || strings.Contains(text, "<script") {
		t.Errorf("the page of an operator:\n%s", text)
	}
	form := url.Values{"name": {"nightly" + hostile}}
	for i, step := range []struct {
		path, token string
		form        url.Values
		status      int
		says        string
		change      func(*http.Request)
	}{
		{"/schedules/trigger", "v", form, 403, "this needs the role operator", as("v")},
		{"/schedules/trigger", "o", form, 403, "a page of another site", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }},
		{"/api/v1/schedules/trigger", "o", url.Values{"name": {"weekle"}}, 404, `did you mean \"weekly\"?`, as("o")},
		{"/api/v1/schedules/trigger", "o", nil, 400, "name is missing", as("o")},
		{"/schedules/trigger", "o", form, 200, "requested</span>", as("o")},
		{"/api/v1/schedules/trigger", "o", form, 200, `{"requested":false,"requested_at":"20`, as("o")},
		{"/api/v1/schedules/trigger", "o", url.Values{"name": {"weekly"}}, 200, `{"requested":true,"requested_at":"20`, as("o")},
	} {
		if step.form == nil {
			step.form = url.Values{}
		}
		res, text := f.do("POST", step.path, step.form, as(step.token), step.change)
		if res.StatusCode == http.StatusSeeOther {
			res, text = f.do("GET", res.Header.Get("Location"), nil, as(step.token))
		}
		if res.StatusCode != step.status || !strings.Contains(text, step.says) {
			t.Errorf("step %d: %s, want %d and %q:\n%s", i, res.Status, step.status, step.says, text)
		}
	}
	if _, text := f.do("GET", "/schedules", nil, as("o")); strings.Contains(text, button) || strings.Count(text, "requested</span>") != 2 || strings.Contains(text, ">waiting<") {
		t.Errorf("the page of requested schedules:\n%s", text)
	}
	entries, err := f.db.Audit(t.Context(), 0, 0)
	if err != nil || len(entries) != 2 {
		t.Fatalf("the audit has %v, %v", entries, err)
	}
	for i, name := range []string{"weekly", "nightly" + hostile} {
		var filter map[string]string
		e := entries[i]
		if json.Unmarshal(e.Filter, &filter) != nil || filter["name"] != name || e.Action != "schedules trigger" || e.Actor != "otto@dashboard" {
			t.Errorf("the audit has %+v", e)
		}
	}
}
