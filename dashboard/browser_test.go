//go:build browser

package dashboard_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/waybill-go/waybill/dashboard"
)

// A tab is one of the machine's chromium. It notes misbehaviour of pages.
type tab struct {
	t   *testing.T
	ctx context.Context
	url string

	mu     sync.Mutex
	faults []string // errors of the console, requests to other hosts, dialogs
}

func newTab(f *fixture) *tab {
	f.t.Helper()
	flags := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("hide-scrollbars", true))
	ctx, cancel := chromedp.NewExecAllocator(f.t.Context(), flags...)
	f.t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	f.t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 5*time.Minute)
	f.t.Cleanup(cancel)
	b := &tab{t: f.t, ctx: ctx, url: f.url}
	if err := chromedp.Listen(ctx, b.note); err != nil {
		f.t.Fatalf("%v; make packages installs chromium", err)
	}
	return b
}

// note is called with each event of the tab.
func (b *tab) note(event any) {
	fault := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault = "exception: " + e.ExceptionDetails.Text
	case *runtime.EventConsoleAPICalled:
		fault = "console: " + string(e.Type)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			fault = "console: " + e.Entry.Text
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, b.url+"/") && !strings.HasPrefix(e.Request.URL, "data:") {
			fault = "request to " + e.Request.URL
		}
	case *page.EventJavascriptDialogOpening:
		fault = "dialog: " + e.Message
	}
	if fault != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.faults = append(b.faults, fault)
	}
}

// noted returns the notes since the last call.
func (b *tab) noted() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	faults := b.faults
	b.faults = nil
	return faults
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// open returns the status of a page.
func (b *tab) open(path string) int {
	b.t.Helper()
	res, err := chromedp.Run(b.ctx, chromedp.NavigateResponse(b.url+path))
	if err != nil {
		b.t.Fatalf("%s: %v", path, err)
	}
	return int(res.Status)
}

// eval returns the value of an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return got
}

// defects lists what readers, users of a keyboard and of a small screen would miss.
const defects = `(() => {
	const bad = [], all = q => [...document.querySelectorAll(q)], root = document.documentElement
	if (all('h1').length !== 1 || !document.title || !root.lang) bad.push('not one heading, a title and a language')
	for (const e of all('input:not([type=hidden]), select, textarea, button, a, progress, [role=img]')) {
		const labels = [...e.labels || []].map(l => l.textContent), by = (e.getAttribute('aria-labelledby') || '').split(' ').map(id => document.getElementById(id)?.textContent || '')
		if (![e.getAttribute('aria-label'), e.textContent, ...labels, ...by].join('').trim()) bad.push('without a name: ' + e.outerHTML.slice(0, 100))
	}
	const ids = all('[id]').map(e => e.id)
	if (new Set(ids).size !== ids.length) bad.push('an id is there twice')
	for (const t of all('table')) if (!t.querySelector('th')) bad.push('a table without headings')
	if (root.scrollWidth > root.clientWidth) bad.push('wider than the window: ' + all('*').filter(e => e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.outerHTML.slice(0, 80)).slice(-1))
	return bad
})()`

var numbers = regexp.MustCompile(`[0-9a-f]{16,}|[0-9]+|%[0-9A-F]{2}.*`)

// kind is what the address of a page shares with those of its like.
func kind(address *url.URL) string {
	names := []string{}
	for name := range address.Query() {
		names = append(names, name)
	}
	slices.Sort(names)
	return numbers.ReplaceAllString(address.Path, "N") + "?" + strings.Join(names, "&")
}

// crawl opens one page of each kind that is reached by links from the overview, in a wide
// window and a narrow one, and returns the kinds.
func (b *tab) crawl() map[string]bool {
	b.t.Helper()
	seen, todo := map[string]bool{"/?": true}, []string{"/"}
	for len(todo) > 0 {
		path := todo[0]
		todo = todo[1:]
		if status := b.open(path); status != http.StatusOK {
			b.t.Errorf("%s: status %d", path, status)
		}
		for _, width := range []int64{1440, 390} {
			b.do(chromedp.EmulateViewport(width, 900))
			if bad := eval[[]string](b, defects); len(bad) > 0 {
				b.t.Errorf("%s, %d wide: %q", path, width, bad)
			}
		}
		for _, link := range eval[[]string](b, `[...document.links].map(a => a.href)`) {
			address, err := url.Parse(link)
			if err != nil || address.Query().Has("format") { // a file to keep
				continue
			}
			if !strings.HasPrefix(link, b.url+"/") {
				b.t.Errorf("%s has a link to %s", path, link)
			} else if k := kind(address); !seen[k] {
				seen[k] = true
				todo = append(todo, strings.TrimPrefix(link, b.url))
			}
		}
	}
	if faults := b.noted(); len(faults) > 0 {
		b.t.Errorf("the pages have %q", faults)
	}
	return seen
}

// Every role opens every page that it finds, and finds no change that it may not make.
func TestBrowserOpensEveryPage(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		var user atomic.Pointer[dashboard.Principal]
		f := newFixture(t, dashboard.Config{ReadOnly: readOnly, Authenticate: func(*http.Request) (dashboard.Principal, error) { return *user.Load(), nil }})
		f.story()
		f.letters(2, "refused "+hostile, `{"note":`+fmt.Sprintf("%q", hostile)+`}`)
		b := newTab(f)
		for role, most := range map[dashboard.Role]string{dashboard.Viewer: "viewer", dashboard.Operator: "operator", dashboard.Admin: "admin"} {
			if readOnly && role != dashboard.Admin {
				continue // who has no more rights
			}
			user.Store(&dashboard.Principal{Name: "ann", Role: role, Bodies: true})
			seen := b.crawl()
			t.Logf("%s, read-only %v: %d kinds of pages", most, readOnly, len(seen))
			for path, needed := range map[string]dashboard.Role{"/failed/retry?fingerprint": dashboard.Operator, "/failed/N/edit?": dashboard.Operator, "/failed/remove?fingerprint": dashboard.Admin} {
				linked := slices.ContainsFunc(slices.Collect(keysOf(seen)), func(k string) bool { return strings.HasPrefix(k, path) })
				if may := role >= needed && !readOnly; linked != may {
					t.Errorf("%s, read-only %v: a link to %s: %v, want %v", most, readOnly, path, linked, may)
				}
				want := http.StatusOK
				if role < needed || readOnly {
					want = http.StatusForbidden
				}
				if got := b.open(strings.NewReplacer("N", "1", "?fingerprint", "?fingerprint=5d41402abc4b2a76").Replace(path)); got != want {
					t.Errorf("%s, read-only %v: %s is answered %d, want %d", most, readOnly, path, got, want)
				}
			}
			b.noted() // the console reports pages that are refused
		}
	}
}

func keysOf(m map[string]bool) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// tabTo presses Tab until the element of that text has the focus, which must be seen.
func (b *tab) tabTo(text string) {
	b.t.Helper()
	for range 200 {
		b.do(chromedp.KeyEvent(kb.Tab))
		at := eval[struct{ Text, Outline string }](b, `(() => { const e = document.activeElement; return {text: (e.labels?.[0] || e).textContent.trim(), outline: getComputedStyle(e).outlineStyle} })()`)
		if at.Text == text {
			if at.Outline == "none" {
				b.t.Errorf("the focus on %q is not seen", text)
			}
			return
		}
	}
	b.t.Fatalf("Tab never reaches %q of %s", text, eval[string](b, "location.pathname"))
}

// enter presses Enter, which leads to another page.
func (b *tab) enter() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if _, err := chromedp.RunResponse(ctx, chromedp.KeyEvent(kb.Enter)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) text() string { return eval[string](b, "document.body.innerText") }

// A group of 10,000 is retried by the keyboard alone: the first time with a rate, and
// cancelled; then to its end.
func TestBrowserRetriesAGroup(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.letters(1, "connection refused", "{}") // makes the transport
	plain, err := sql.Open("sqlite", "shop.db")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	const group = 10_000
	if _, err := plain.ExecContext(t.Context(), `INSERT INTO waybill_failed (source, transport, failure_transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, first_failed_at, failed_at, last_error, handler, fingerprint)
		WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
		SELECT 'worker', 'billing', 'failed', 'failed', randomblob(16), 'order.placed', 'k' || n, '{}', '{}', unixepoch() * 1000000, 9, unixepoch() * 1000000, unixepoch() * 1000000, 'connection refused', 'invoices', 'f18' FROM n`, group-1); err != nil {
		t.Fatal(err)
	}
	count := func(table string) (n int) {
		t.Helper()
		if err := plain.QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	b := newTab(f)
	b.open("/")
	b.do(chromedp.KeyEvent(kb.Tab))
	if first := eval[string](b, "document.activeElement.textContent"); first != "Skip to the content" {
		t.Errorf("Tab leads first to %q", first)
	}

	retry := func(rate string) (progress map[string]bool) {
		b.tabTo("Dead letters")
		b.enter()
		b.tabTo("Retry…")
		b.enter()
		if rate != "" {
			b.tabTo("Messages a second, at most")
			b.do(chromedp.KeyEvent(rate))
		}
		button := eval[string](b, "document.querySelector('main form button').textContent")
		b.tabTo(button)
		b.enter()
		progress = map[string]bool{}
		for deadline := time.Now().Add(time.Minute); strings.Contains(b.text(), "Running:"); {
			if time.Now().After(deadline) {
				t.Fatalf("the retry does not end:\n%s", b.text())
			}
			if at := eval[string](b, "document.querySelector('progress').value + ''"); at != "0" {
				progress[at] = true
			}
			if rate != "" && len(progress) > 0 {
				b.tabTo("Cancel")
				b.enter()
			} else {
				b.do(chromedp.Reload())
			}
		}
		return progress
	}
	retry("4000")
	text, moved := b.text(), count("waybill_retry")
	if !strings.Contains(text, "cancelled") || moved == 0 || moved == group || moved+count("waybill_failed WHERE state = 'failed'") != group {
		t.Fatalf("cancelled with %d retried, %d left:\n%s", moved, count("waybill_failed WHERE state = 'failed'"), text)
	}
	t.Logf("cancelled after %d of %d", moved, group)
	progress := retry("")
	if text := b.text(); !strings.Contains(text, "done") || count("waybill_retry") != group || count("waybill_failed WHERE state = 'failed'") != 0 {
		t.Fatalf("%d of %d retried:\n%s", count("waybill_retry"), group, text)
	}
	t.Logf("the rest was done, seen at %d places of its progress", len(progress))
	if faults := b.noted(); len(faults) > 0 {
		t.Errorf("the pages have %q", faults)
	}
}

// TestScreenshots writes the pictures of docs/.
func TestScreenshots(t *testing.T) {
	docs, err := filepath.Abs("../docs/dashboard") // newFixture changes the directory
	if err != nil {
		t.Fatal(err)
	}
	ann := func(*http.Request) (dashboard.Principal, error) {
		return dashboard.Principal{Name: "ann", Role: dashboard.Admin, Bodies: true}, nil
	}
	f := newFixture(t, dashboard.Config{Authenticate: ann, Settings: []dashboard.Setting{{Key: "database", Value: "sqlite://./shop.db", From: "waybill.yaml:1"}}})
	f.story()
	minutes := make([]int64, 58)
	for i := range minutes {
		minutes[i] = int64(300 + 120*math.Sin(float64(i)/9) + 40*math.Sin(float64(i)*1.7))
	}
	f.counted(minutes...)
	b := newTab(f)
	for name, path := range map[string]string{"overview": "/", "outbox": "/outbox", "groups": "/failed", "message": "/failed/8", "retry": "/failed/retry?fingerprint=5d41402abc4b2a76", "workers": "/workers"} {
		for _, width := range []int64{1440, 390} {
			for _, scheme := range []string{"light", "dark"} {
				b.do(chromedp.EmulateViewport(width, 900))
				if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
					t.Fatal(err)
				}
				b.open(path)
				picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
				if err = cmp.Or(err, os.WriteFile(filepath.Join(docs, fmt.Sprintf("%s-%s-%d.png", name, scheme, width)), picture, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
