package dashboard_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/waysqlite"
)

func TestAPIListsAndChanges(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.story()
	for _, path := range []string{"overview", "outbox", "blocked", "failed", "failed/groups", "failed/8", "retries", "inbox?id=x", "messages?id=01890a5d-ac96-774b-bcce-b302099a8057", "stats", "workers", "workers/paused", "schedules", "audit", "operations", "openapi.json"} {
		res, text := f.do("GET", "/api/v1/"+path, nil)
		if res.StatusCode != http.StatusOK || !json.Valid([]byte(text)) {
			t.Errorf("%s: %s\n%s", path, res.Status, text)
		}
	}
	seen := 0
	for after := "0"; after != ""; {
		res, text := f.do("GET", "/api/v1/failed?limit=10&format=csv&after="+after, nil)
		rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		if err != nil || rows[0][0] != "number" {
			t.Fatalf("%v in\n%s", err, text)
		}
		seen += len(rows) - 1
		after = res.Header.Get("X-Next-After")
	}
	if seen != 31 {
		t.Errorf("the pages have %d dead letters, want 31", seen)
	}
	form := url.Values{"fingerprint": {"9a0364b9e99bb480"}}
	if res, text := f.do("POST", "/api/v1/failed/retry", form); res.StatusCode != http.StatusOK || text != "{\"count\":4}\n" {
		t.Errorf("without a count: %s %s", res.Status, text)
	}
	form.Set("count", "3")
	if res, text := f.do("POST", "/api/v1/failed/retry", form); res.StatusCode != http.StatusConflict || !strings.Contains(text, "count=4") {
		t.Errorf("with a wrong count: %s %s", res.Status, text)
	}
	form.Set("count", "4")
	res, text := f.do("POST", "/api/v1/failed/retry", form)
	for range 2000 {
		if strings.Contains(text, `"state":"done"`) {
			break
		}
		_, text = f.do("GET", "/api/v1/operations/1", nil)
	}
	if res.StatusCode != http.StatusAccepted || !strings.Contains(text, `"done":4`) {
		t.Errorf("the operation: %s %s", res.Status, text)
	}
}

func TestFormulasOfSpreadsheetsAreTexts(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.letters(1, `=HYPERLINK("http://evil")`, `{}`)
	if _, text := f.do("GET", "/api/v1/failed?format=csv", nil); !strings.Contains(text, `"'=HYPERLINK`) {
		t.Errorf("the export:\n%s", text)
	}
}

func TestInboxIsListedPageByPage(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	db := f.db.(*waysqlite.DB)
	for i := range 3 {
		for _, handler := range []string{"invoices", hostile} {
			id, err := waybill.NewMessageID()
			if err == nil {
				err = db.Insert(t.Context(), inbox.Entry{Handler: handler, DedupKey: fmt.Sprint("k:order.placed/", i), MessageID: id})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	next := regexp.MustCompile(`href="(/inbox\?[^"]*after=[^"]*)">Next<`)
	rows, pages := 0, 0
	for path := "/inbox?limit=2&handler=invoices"; path != "" && pages < 9; pages++ {
		_, text := f.do("GET", path, nil)
		rows += strings.Count(text, "<td>invoices</td><td><a")
		if strings.Contains(text, "<script src") {
			t.Error("a name is code")
		}
		path = ""
		if found := next.FindStringSubmatch(text); found != nil {
			path = html.UnescapeString(found[1])
		}
	}
	if rows != 3 || pages != 2 {
		t.Errorf("%d entries on %d pages, want 3 on 2", rows, pages)
	}
	keys := map[string]bool{}
	for after := ""; len(keys) < 9; {
		var page struct {
			Items []admin.InboxEntry `json:"items"`
			After string             `json:"after"`
		}
		_, text := f.do("GET", "/api/v1/inbox?limit=4&after="+url.QueryEscape(after), nil)
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		for _, e := range page.Items {
			keys[e.Handler+e.DedupKey] = true
		}
		if after = page.After; after == "" {
			break
		}
	}
	if len(keys) != 6 {
		t.Errorf("the API has %v, want 6 entries", keys)
	}
	for _, path := range []string{"/inbox?after=x", "/api/v1/inbox?after=x", "/api/v1/inbox?limit=0"} {
		if res, _ := f.do("GET", path, nil); res.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
}

func TestBlockedKeysComePageByPage(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.story()
	f.dispatch("=1")
	f.refuse("o-17 o-23 =1")
	var keys []string
	for after := ""; len(keys) < 9; {
		var page struct {
			Items []admin.BlockedKey `json:"items"`
			After string             `json:"after"`
		}
		_, text := f.do("GET", "/api/v1/blocked?limit=1&after="+url.QueryEscape(after), nil)
		if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Items) != 1 || page.Items[0].Waiting == 0 {
			t.Fatalf("%v in %s", err, text)
		}
		keys = append(keys, page.Items[0].Key)
		if after = page.After; after == "" {
			break
		}
	}
	slices.Sort(keys)
	if !slices.Equal(keys, []string{"=1", "o-17", "o-23"}) {
		t.Errorf("the pages have %q", keys)
	}
	if _, text := f.do("GET", "/api/v1/blocked?key=o-17", nil); !strings.Contains(text, `"waiting":2`) || strings.Contains(text, "o-23") {
		t.Errorf("one key: %s", text)
	}
	if res, _ := f.do("GET", "/api/v1/blocked?after=x", nil); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a wrong place: %s", res.Status)
	}
}

// A routed database has a blocked key and a blocked route, which no file has.
type routed struct{ *waysqlite.DB }

func (routed) BlockedKeys(context.Context, admin.BlockedKeysQuery) ([]admin.BlockedKey, error) {
	return []admin.BlockedKey{{Transport: "events", Route: "order.placed"}, {Transport: "events", Key: "o-1"}}, nil
}

func (r routed) Blocked(ctx context.Context, _ string, _ int) ([]admin.BlockedKey, error) {
	return r.BlockedKeys(ctx, admin.BlockedKeysQuery{})
}

// A route has no head to skip, and is released all the same.
func TestRouteIsCountedForAReleaseOfAll(t *testing.T) {
	t.Chdir(t.TempDir())
	db, err := waysqlite.Open(t.Context(), "shop.db", waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f := fixtureOn(t, routed{db}, nil, dashboard.Config{})
	for _, skip := range []string{"false", "true"} {
		_, text := f.do("POST", "/api/v1/blocked/release", url.Values{"all": {"true"}, "skip_head": {skip}})
		if text != "{\"count\":2}\n" {
			t.Errorf("with skip_head=%s: %s, want both entries", skip, text)
		}
	}
}
