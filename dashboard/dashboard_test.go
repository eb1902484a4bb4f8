package dashboard_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

// hostile is the canary in names, keys, headers, bodies and errors.
const hostile = `"><script src=//evil></script><img src=x onerror=alert(1)></textarea></pre>'`

// A database has the abilities that the fixture needs.
type database interface {
	dashboard.Database
	admin.Workers
	worker.Registry
	outbox.Store
	RetryQueue(transport string) (worker.RetryQueue, error)
	Close() error
}

// fixture is a dashboard on a database, and a browser without JavaScript.
type fixture struct {
	t        *testing.T
	db       database
	dispatch func(keys ...string) // an order for each key
	url      string
}

// newFixture is a dashboard on a SQLite file.
func newFixture(t *testing.T, cfg dashboard.Config) *fixture {
	t.Helper()
	t.Chdir(t.TempDir())
	db, err := waysqlite.Open(t.Context(), "shop.db", waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return fixtureOn(t, db, dispatcher(t, db), cfg)
}

func fixtureOn(t *testing.T, db database, dispatch func(keys ...string), cfg dashboard.Config) *fixture {
	t.Helper()
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, db: db, dispatch: dispatch}
	cfg.Database = db
	f.serve(cfg)
	return f
}

// serve has the browser use a dashboard with that configuration.
func (f *fixture) serve(cfg dashboard.Config) {
	f.t.Helper()
	d, err := dashboard.New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = d.Close() })
	server := httptest.NewServer(d)
	f.t.Cleanup(server.Close)
	f.url = server.URL + cfg.Prefix
}

// dispatcher dispatches an order for each key, in one transaction.
func dispatcher[TX any](t *testing.T, db outbox.Writer[TX]) func(keys ...string) {
	return func(keys ...string) {
		t.Helper()
		out, err := outbox.New(db, outbox.Config{To: "events"})
		if err != nil {
			t.Fatal(err)
		}
		err = out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
			for _, key := range keys {
				if _, err := tx.Dispatch(ctx, order{key}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// letters adds n dead letters of a worker with the error of that text.
func (f *fixture) letters(n int, text, body string) {
	f.t.Helper()
	q, err := f.db.RetryQueue("billing")
	if err != nil {
		f.t.Fatal(err)
	}
	for i := range n {
		id, err := waybill.NewMessageID()
		if err != nil {
			f.t.Fatal(err)
		}
		rec := &waybill.Record{
			ID: id, Name: "order.placed", Key: fmt.Sprint(hostile, i), ContentType: "application/json", Body: []byte(body),
			Headers: map[string]string{"tenant": hostile, "secret": "s3cr3t-header"}, DispatchedAt: time.Now().UTC(),
		}
		attempt := &worker.Attempt{At: time.Now().UTC(), Worker: "host/1", Failure: worker.Failure{Handler: "invoices", Type: "*Error", Error: text, Stack: "goroutine 7 " + hostile, Fingerprint: fmt.Sprint("f", len(text))}}
		if err := q.Add(f.t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}, Attempt: attempt, DeadLetters: "lost"}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// bearerOf authenticates by tokens.
func bearerOf(t *testing.T, tokens map[string]dashboard.Principal) dashboard.Authenticate {
	t.Helper()
	sums := map[string]dashboard.Principal{}
	for token, p := range tokens {
		sums[fmt.Sprintf("%x", sha256.Sum256([]byte(token)))] = p
	}
	bearer, err := dashboard.Bearer(sums)
	if err != nil {
		t.Fatal(err)
	}
	return bearer
}

// do sends a request, and returns its answer with the text.
func (f *fixture) do(method, path string, form url.Values, change ...func(*http.Request)) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		f.t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, c := range change {
		c(r)
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return res, string(text)
}

// get returns a page, which must be there.
func (f *fixture) get(path string) (*html.Node, string) {
	f.t.Helper()
	res, text := f.do("GET", path, nil)
	if res.StatusCode != http.StatusOK {
		f.t.Fatalf("GET %s: %s\n%s", path, res.Status, text)
	}
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		f.t.Fatal(err)
	}
	return root, text
}

// submit sends the form of a page that posts to path, with further fields.
func (f *fixture) submit(page, path string, more url.Values) (*http.Response, string) {
	f.t.Helper()
	root, _ := f.get(page)
	form := url.Values{}
	for n := range root.Descendants() {
		if n.Data == "form" && attr(n, "method") == "post" && attr(n, "action") == path {
			for in := range n.Descendants() {
				if in.Data == "input" && attr(in, "type") == "hidden" {
					form.Add(attr(in, "name"), attr(in, "value"))
				}
			}
		}
	}
	for name, values := range more {
		form[name] = values
	}
	return f.do("POST", path, form)
}

// ended waits for the end of the operation to which a change has led.
func (f *fixture) ended(res *http.Response) string {
	f.t.Helper()
	if res.StatusCode != http.StatusSeeOther {
		f.t.Fatalf("the change answers %s", res.Status)
	}
	for range 2000 {
		_, text := f.get(res.Header.Get("Location"))
		if !strings.Contains(text, "Running:") {
			return text
		}
	}
	f.t.Fatal("the operation does not end")
	return ""
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func TestHostileMessagesHaveNoEffect(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.letters(2, "refused "+hostile, `{"note":`+fmt.Sprintf("%q", hostile)+`}`)
	script := regexp.MustCompile(`^on|^style$|^srcdoc$`)
	for _, path := range []string{
		"/", "/outbox", "/outbox?key=" + url.QueryEscape(hostile), "/failed", "/failed?error=" + url.QueryEscape(hostile), "/failed/list", "/failed/list?key=" + url.QueryEscape(hostile+"1"),
		"/failed/1", "/failed/1/edit", "/failed/retry?all=true", "/failed/remove?number=1", "/operations",
		"/retries", "/retries?key=" + url.QueryEscape(hostile), "/inbox?id=" + url.QueryEscape(hostile), "/workers", "/schedules", "/audit", "/system",
	} {
		root, _ := f.get(path)
		for n := range root.Descendants() {
			if n.Type != html.ElementNode {
				continue
			}
			if slices.Contains([]string{"script", "img", "style", "iframe", "object", "base"}, n.Data) {
				t.Errorf("%s has an element %s", path, n.Data)
			}
			if (n.Data == "svg" || n.Namespace == "svg") && !drawing(n) {
				t.Errorf("%s has %s with %v", path, n.Data, n.Attr)
			}
			for _, a := range n.Attr {
				to, err := url.Parse(a.Val)
				link := slices.Contains([]string{"href", "src", "action", "formaction"}, a.Key)
				if script.MatchString(a.Key) || link && (err != nil || to.Host != "" || to.Scheme != "") {
					t.Errorf("%s has %s=%q of %s", path, a.Key, a.Val, n.Data)
				}
			}
		}
	}
	res, _ := f.do("GET", "/", nil)
	if csp := res.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "script-src") {
		t.Errorf("Content-Security-Policy: %s", csp)
	}
}

// drawing reports whether n is the drawing of a group's hours, or a bar of it, with nothing
// but numbers of its data.
func drawing(n *html.Node) bool {
	allowed := map[string]string{
		"class": "^spark$", "viewBox": "^0 0 96 24$", "role": "^img$", "aria-label": "^[0-9,]+ in 24 hours, [0-9,]+ in the last one$",
		"x": "^[0-9]+$", "y": "^[0-9]+$", "width": "^3$", "height": "^[0-9]+$",
	}
	for _, a := range n.Attr {
		if allowed[a.Key] == "" || !regexp.MustCompile(allowed[a.Key]).MatchString(a.Val) {
			return false
		}
	}
	return n.Data == "svg" || n.Data == "rect" && n.Parent.Data == "svg"
}

func TestGroupIsRetriedAndAudited(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.letters(250, "connection refused", `{}`)
	f.letters(3, "other", `{}`)
	page := "/failed/retry?fingerprint=f18"
	if _, text := f.get(page); !strings.Contains(text, "<strong>250 messages</strong>") {
		t.Errorf("the count is not 250:\n%s", text)
	}
	f.letters(1, "connection refused", `{}`) // after the count, and not of it
	res, _ := f.submit(page, "/failed/retry", url.Values{"count": {"1"}})
	if res.StatusCode != http.StatusOK {
		t.Errorf("a wrong count answers %s, want the page with the new one", res.Status)
	}
	res, _ = f.submit(page, "/failed/retry", nil)
	if text := f.ended(res); !strings.Contains(text, "251 of 251") {
		t.Errorf("the operation:\n%s", text)
	}
	stats, err := f.db.WorkerStats(t.Context())
	if err != nil || len(stats) != 1 || stats[0].Retrying != 251 || stats[0].Failed != 3 {
		t.Errorf("WorkerStats = %+v, %v", stats, err)
	}
	audit, err := f.db.Audit(t.Context(), 0, 0)
	total := 0
	for _, a := range audit {
		total += a.Messages
		if a.Actor != admin.Actor() || !strings.Contains(string(a.Filter), `"fingerprint":"f18"`) {
			t.Errorf("audit: %+v", a)
		}
	}
	if err != nil || total != 251 {
		t.Errorf("the audit has %d messages, %v", total, err)
	}
}

func TestOperationIsCancelled(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.letters(5, "gone", `{}`)
	res, _ := f.submit("/failed/remove?all=true", "/failed/remove", url.Values{"rate": {"1"}})
	at := res.Header.Get("Location")
	if root, _ := f.get(at); root == nil {
		t.Fatal("no page")
	}
	f.do("POST", at+"/cancel", url.Values{})
	if text := f.ended(res); !strings.Contains(text, "cancelled") {
		t.Errorf("the operation:\n%s", text)
	}
	left, err := f.db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(left) == 0 {
		t.Errorf("%d are left, %v", len(left), err)
	}
}

func TestBodyIsEdited(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.letters(1, "refused", "{\n \"cents\": 1}")
	res, text := f.submit("/failed/1/edit", "/failed/1/edit", url.Values{"body": {"{"}})
	if res.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, "not JSON") {
		t.Errorf("a wrong body answers %s", res.Status)
	}
	res, _ = f.submit("/failed/1/edit", "/failed/1/edit", url.Values{"body": {"{\r\n \"cents\": 2}"}})
	c, err := f.db.FailedContent(t.Context(), 1)
	if res.StatusCode != http.StatusSeeOther || err != nil || string(c.Body) != "{\n \"cents\": 2}" {
		t.Errorf("%s, body %q, %v", res.Status, c.Body, err)
	}
	if res, _ := f.submit("/failed/1/edit", "/failed/1/edit", url.Values{"body": {"{}"}, "hash": {"old"}}); res.StatusCode != http.StatusConflict {
		t.Errorf("an edit of an old body answers %s", res.Status)
	}
}

func TestRulesHideSecrets(t *testing.T) {
	f := newFixture(t, dashboard.Config{Redact: dashboard.Redaction{Headers: []string{"Secret"}, Paths: []string{"cards.*.number"}}})
	f.letters(1, "refused", `{"cards":[{"number":"s3cr3t-1","kind":"v"}]}`)
	f.letters(1, "refused", `no json s3cr3t-2`)
	for _, path := range []string{"/failed/1", "/failed/2"} {
		if _, text := f.get(path); strings.Contains(text, "s3cr3t") {
			t.Errorf("%s has a secret", path)
		}
	}
	if res, _ := f.do("GET", "/failed/1/edit", nil); res.StatusCode != http.StatusConflict {
		t.Errorf("an edit of a body with hidden fields answers %s", res.Status)
	}
}

func TestRightsAreThoseOfTheRole(t *testing.T) {
	bearer := bearerOf(t, map[string]dashboard.Principal{
		"v": {Name: "vera", Role: dashboard.Viewer}, "o": {Name: "otto", Role: dashboard.Operator, Bodies: true}, "a": {Name: "anna", Role: dashboard.Admin, Bodies: true},
	})
	as := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	for _, readOnly := range []bool{false, true} {
		f := newFixture(t, dashboard.Config{Authenticate: bearer, ReadOnly: readOnly})
		f.letters(3, "refused", `{"s":"s3cr3t-body"}`)
		for _, tt := range []struct {
			method, path string
			want         map[string]int
		}{
			{"GET", "/", map[string]int{"": 401, "x": 401, "v": 200, "o": 200, "a": 200}},
			{"GET", "/failed/1", map[string]int{"": 401, "v": 200, "o": 200, "a": 200}},
			{"GET", "/failed/1/edit", map[string]int{"": 401, "v": 403, "o": 200, "a": 200}},
			{"POST", "/failed/1/edit", map[string]int{"": 401, "v": 403, "o": 409, "a": 409}},
			{"GET", "/failed/retry?number=1", map[string]int{"": 401, "v": 403, "o": 200, "a": 200}},
			{"POST", "/failed/retry", map[string]int{"": 401, "v": 403, "o": 400, "a": 400}},
			{"GET", "/failed/remove?number=1", map[string]int{"": 401, "v": 403, "o": 403, "a": 200}},
			{"POST", "/failed/remove", map[string]int{"": 401, "v": 403, "o": 403, "a": 400}},
			{"GET", "/system", map[string]int{"": 401, "v": 200}},
			{"POST", "/retries/release", map[string]int{"": 401, "v": 403, "o": 400, "a": 400}},
			{"POST", "/workers/0192f0c1-0000-7000-8000-000000000000/stop", map[string]int{"": 401, "v": 403, "o": 403, "a": 404}},
			{"POST", "/schedules/trigger", map[string]int{"": 401, "v": 403, "o": 400, "a": 400}},
			{"POST", "/api/v1/schedules/trigger", map[string]int{"": 401, "v": 403, "o": 400, "a": 400}},
			{"POST", "/workers/pause", map[string]int{"": 401, "v": 403, "o": 403, "a": 400}},
			{"POST", "/workers/resume", map[string]int{"": 401, "v": 403, "o": 403, "a": 400}},
			{"POST", "/outbox/release", map[string]int{"": 401, "v": 403, "o": 400, "a": 400}},
			{"POST", "/operations/1/cancel", map[string]int{"": 401, "v": 403, "o": 404, "a": 404}},
		} {
			for token, want := range tt.want {
				if change := tt.method == "POST" || tt.want["v"] == http.StatusForbidden; readOnly && change && want != http.StatusUnauthorized {
					want = http.StatusForbidden
				}
				res, text := f.do(tt.method, tt.path, url.Values{}, as(token))
				if res.StatusCode != want {
					t.Errorf("read-only %v: %s %s as %q: %s, want %d", readOnly, tt.method, tt.path, token, res.Status, want)
				}
				if token == "v" && strings.Contains(text, "s3cr3t") {
					t.Errorf("%s shows a body to a viewer", tt.path)
				}
			}
		}
		for path, form := range map[string]url.Values{"/failed/remove": {"all": {"true"}, "count": {"3"}}, "/workers/pause": {"transport": {"events"}}} {
			res, _ := f.do("POST", path, form, as("a"), func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })
			if res.StatusCode != http.StatusForbidden {
				t.Errorf("a request of another site to %s: %s", path, res.Status)
			}
		}
	}
}

func TestDashboardWithoutUsersIsForThisMachine(t *testing.T) {
	f := newFixture(t, dashboard.Config{Prefix: "/waybill"})
	f.get("/")
	if res, _ := f.do("GET", "/", nil, func(r *http.Request) { r.Host = "evil.example" }); res.StatusCode != http.StatusForbidden {
		t.Errorf("the name of another host: %s", res.Status)
	}
	for address, want := range map[string]bool{"127.0.0.1:80": true, "localhost:80": true, "[::1]:80": true, "0.0.0.0:80": false, ":80": false, "10.0.0.1:80": false} {
		if err := dashboard.ListenAllowed(address, false); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestRedirectsStayBelowThePrefix(t *testing.T) {
	f := newFixture(t, dashboard.Config{Prefix: "/ops/waybill"})
	for path, want := range map[string]string{"": "/ops/waybill/", "//outbox?key=k": "/ops/waybill/outbox?key=k", "/static/../failed": "/ops/waybill/failed"} {
		if res, _ := f.do("GET", path, nil); res.Header.Get("Location") != want {
			t.Errorf("%q: %s to %q, want %q", path, res.Status, res.Header.Get("Location"), want)
		}
	}
	if res, _ := f.do("GET", "s", nil); res.StatusCode != http.StatusNotFound {
		t.Errorf("another path with the same beginning: %s", res.Status)
	}
}

type order struct{ ID string }

func (order) MessageName() string    { return "order.placed" }
func (o order) PartitionKey() string { return o.ID }

func TestOutboxIsPaged(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.dispatch("o-0", "o-1", "o-2", "o-3", "o-4")
	seen := 0
	for path := "/outbox?limit=2"; path != ""; {
		root, text := f.get(path)
		seen += strings.Count(text, "<code>o-")
		path = ""
		for n := range root.Descendants() {
			if n.Data == "a" && n.FirstChild != nil && n.FirstChild.Data == "Next" {
				path = attr(n, "href")
			}
		}
	}
	if seen != 5 {
		t.Errorf("%d messages on all pages, want 5", seen)
	}
	for _, path := range []string{"/outbox?limit=0", "/outbox?after=x", "/failed?since=never", "/failed/list?state=odd", "/failed/retry", "/outbox/release"} {
		if res, _ := f.do("GET", path, nil); res.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	for _, path := range []string{"/failed/99", "/failed/x", "/nothing", "/operations/9", "/outbox/release?key=o-1"} {
		if res, _ := f.do("GET", path, nil); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
}

// Delayed messages, which have numbers of their own, come behind the others.
func TestOutboxIsPagedWithItsDelayedMessages(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	out, err := outbox.New(f.db.(*waysqlite.DB), outbox.Config{To: "events"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{}
	for i := range 4 {
		key := fmt.Sprint("d-", i)
		err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[*sql.Tx]) error {
			_, err := tx.Dispatch(ctx, waybill.NewEnvelope(order{key}, waybill.Delay(time.Duration(i+1)*time.Hour)))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, key)
	}
	f.dispatch("o-0", "o-1", "o-2")
	want = append([]string{"o-0", "o-1", "o-2"}, want...)
	read := func(after string) (keys []string, next string) {
		var page struct {
			Items []admin.OutboxMessage
			More  bool
			After json.RawMessage
		}
		_, text := f.do("GET", "/api/v1/outbox?limit=2&after="+after, nil)
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		for _, m := range page.Items {
			keys = append(keys, m.Key)
		}
		if page.More {
			next = strings.Trim(string(page.After), `"`)
		}
		return keys, next
	}
	got, next := read("")
	for next != "" && len(got) <= len(want) {
		var keys []string
		keys, next = read(next)
		got = append(got, keys...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages have %v, want %v", got, want)
	}
	if keys, _ := read("2"); !slices.Equal(keys, []string{"o-2"}) {
		t.Errorf("the page after a number has %v", keys)
	}
}

// bounded fails where a page reads the whole retry queue.
type bounded struct {
	database
	t *testing.T
}

func (b bounded) Retries(ctx context.Context, q admin.RetriesQuery) ([]admin.RetryingMessage, error) {
	if q.Limit == 0 || q.Limit > 2000 {
		b.t.Errorf("a page reads %d messages of a retry queue", q.Limit)
	}
	return b.database.Retries(ctx, q)
}

// park adds a parked message of a key to the retry queue of billing.
func (f *fixture) park(key string) waybill.MessageID {
	f.t.Helper()
	q, err := f.db.RetryQueue("billing")
	if err != nil {
		f.t.Fatal(err)
	}
	id, err := waybill.NewMessageID()
	if err != nil {
		f.t.Fatal(err)
	}
	attempt := &worker.Attempt{At: time.Now().UTC(), Worker: "host/1", Failure: worker.Failure{Error: "refused " + hostile, Stack: hostile}}
	rec := &waybill.Record{ID: id, Name: "order.placed", Key: key, ContentType: "application/json", Body: []byte("{}"), DispatchedAt: time.Now().UTC()}
	if err := q.Add(f.t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}, Attempt: attempt, Delay: time.Hour, Parked: true}); err != nil {
		f.t.Fatal(err)
	}
	return id
}

func TestParkedRetriesAreSkipped(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	unpaid := func(transport string) string { return "unpaid " + transport }
	for want, named := range map[string]func(string) string{"unpaid billing": unpaid, "failed": nil} {
		f.serve(dashboard.Config{Database: f.db, FailureTransport: named})
		id := f.park("o-" + want)
		page := "/retries/release?" + url.Values{"transport": {"billing"}, "key": {"o-" + want}}.Encode()
		res, _ := f.submit(page, "/retries/release", url.Values{"skip_head": {"true"}})
		if text := f.ended(res); !strings.Contains(text, "1 of 1") || !strings.Contains(text, "--skip-head") {
			t.Errorf("the operation:\n%s", text)
		}
		letters, err := f.db.Failed(t.Context(), admin.FailedQuery{FailureTransport: want})
		if err != nil || len(letters) != 1 || letters[0].ID != id || letters[0].State != admin.Failed {
			t.Errorf("Failed = %+v, %v, want %s of %s", letters, err, id, want)
		}
	}
	if found, err := f.db.Retries(t.Context(), admin.RetriesQuery{}); err != nil || len(found) > 0 {
		t.Errorf("Retries = %+v, %v", found, err)
	}
}

func TestParkedRetriesAreReleased(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.serve(dashboard.Config{Database: bounded{f.db, t}})
	id := f.park("o-1")
	for path, want := range map[string]string{"/retries": "parked", "/retries/billing/" + id.String(): "Attempt 1", "/inbox?id=" + id.String(): "No handler", "/": "1 message parked"} {
		if _, text := f.get(path); !strings.Contains(text, want) || strings.Contains(text, "<script") {
			t.Errorf("%s has no %q:\n%s", path, want, text)
		}
	}
	res, _ := f.submit("/retries/release?transport=billing&key=o-1", "/retries/release", nil)
	if text := f.ended(res); !strings.Contains(text, "1 of 1") {
		t.Errorf("the operation:\n%s", text)
	}
	found, err := f.db.Retries(t.Context(), admin.RetriesQuery{})
	if err != nil || len(found) != 1 || found[0].Parked {
		t.Errorf("Retries = %+v, %v", found, err)
	}
	if _, text := f.get("/audit"); !strings.Contains(text, "o-1") {
		t.Errorf("the audit has no release:\n%s", text)
	}
}

func TestAuditHidesBodies(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.letters(1, "refused", `{"s":"s3cr3t"}`)
	if err := f.db.EditFailed(t.Context(), 1, []byte(`{"s":"s3cr3t"}`), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if _, text := f.get("/audit"); !strings.Contains(text, "original_body_base64") || strings.Contains(text, "eyJzIjoiczNjcjN0In0") {
		t.Errorf("the audit:\n%s", text)
	}
}

func TestRefreshIsAChoice(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	for path, want := range map[string]bool{"/": true, "/?refresh=off": false, "/failed": false, "/failed?refresh=on&name=x": true} {
		if _, text := f.get(path); strings.Contains(text, `http-equiv="refresh"`) != want {
			t.Errorf("%s: refreshes itself %v, want %v", path, !want, want)
		}
	}
}
