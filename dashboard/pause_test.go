package dashboard_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/dashboard"
)

// A transport is paused with a reason, which the first page shows until it is resumed; each
// button is there for the users that may press it.
func TestTransportIsPausedFromThePage(t *testing.T) {
	roles := map[string]dashboard.Role{"v": dashboard.Viewer, "a": dashboard.Admin}
	f := newFixture(t, dashboard.Config{Authenticate: func(r *http.Request) (dashboard.Principal, error) {
		name := r.Header.Get("X-User")
		return dashboard.Principal{Name: name, Role: roles[name]}, nil
	}})
	f.story()
	as := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("X-User", name) } }
	page := func(user, path string, want, not string) {
		t.Helper()
		res, text := f.do("GET", path, nil, as(user))
		if res.StatusCode != http.StatusOK || !strings.Contains(text, want) || not != "" && strings.Contains(text, not) {
			t.Errorf("%s as %s: %s, want %q and not %q:\n%s", path, user, res.Status, want, not, text)
		}
	}
	post := func(path string, form url.Values, want int, says string) {
		t.Helper()
		if res, text := f.do("POST", path, form, as("a")); res.StatusCode != want || !strings.Contains(text, says) {
			t.Errorf("%s %v: %s, want %d and %q:\n%s", path, form, res.Status, want, says, text)
		}
	}
	page("v", "/workers", "billing", "Pause this transport")
	page("a", "/workers", "Pause this transport", "Resume")
	post("/workers/pause", url.Values{"transport": {"biling"}}, http.StatusNotFound, "did you mean &#34;billing&#34;?")
	post("/workers/pause", url.Values{"transport": {"billing"}, "reason": {"<b>the bank</b> is down"}}, http.StatusSeeOther, "")
	page("a", "/workers", "&lt;b&gt;the bank&lt;/b&gt; is down", "Pause this transport")
	page("v", "/workers", "a@dashboard", "Resume")
	page("v", "/", ") by a@dashboard: &lt;b&gt;the bank&lt;/b&gt; is down", "<b>the")
	page("v", "/api/v1/workers/paused", `"actor":"a@dashboard"`, "")
	page("v", "/api/v1/overview", `billing: paused since `, "")
	page("v", "/audit", "workers pause", "workers resume")
	post("/api/v1/workers/pause", url.Values{"transport": {"billing"}}, http.StatusOK, `{"changed":false}`)
	post("/workers/resume", url.Values{"transport": {"billing"}}, http.StatusSeeOther, "")
	post("/workers/resume", url.Values{"transport": {"billing"}}, http.StatusNotFound, "not paused")
	page("v", "/", "dead letter", "paused since")
	page("a", "/workers", "Pause this transport", "Resume")
	post("/api/v1/workers/pause", url.Values{"transport": {"billing"}}, http.StatusOK, `{"changed":true}`)
	post("/api/v1/workers/resume", url.Values{"transport": {"billing"}}, http.StatusOK, `{"changed":true}`)
	post("/api/v1/workers/resume", url.Values{}, http.StatusBadRequest, "transport is missing")
}

// A SQLite file has one relay at a time, which does not report: no page says that it is silent.
func TestPagesDoNotMissReportsOfRelaysThatDoNotReport(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	for _, path := range []string{"/", "/workers"} {
		if _, text := f.get(path); !strings.Contains(text, "Relays of this database do not report") || strings.Contains(text, "No relay has reported") {
			t.Errorf("%s:\n%s", path, text)
		}
	}
}
