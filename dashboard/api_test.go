package dashboard_test

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/dashboard"
)

func TestAPIListsAndChanges(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.story()
	for _, path := range []string{"overview", "outbox", "blocked", "failed", "failed/groups", "failed/8", "retries", "inbox?id=x", "schedules", "audit", "operations", "openapi.json"} {
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
