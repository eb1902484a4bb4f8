package dashboard_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/history"
)

// counted adds a minute for each number of messages, the last one two minutes ago.
func (f *fixture) counted(numbers ...int64) {
	f.t.Helper()
	at := time.Now().UTC().Truncate(time.Minute).Add(-2 * time.Minute)
	var rows []history.Row
	for i, n := range numbers {
		if n == 0 {
			continue // processes write no such row
		}
		c := history.Counts{Dispatched: n, Published: n, Handled: n, Failed: n / 10}
		for range n {
			c.Critical.Observe(30 * time.Millisecond)
		}
		rows = append(rows, history.Row{At: at.Add(-time.Duration(len(numbers)-1-i) * time.Minute), Counts: c})
	}
	if err := f.db.(history.Store).AddHistory(f.t.Context(), rows); err != nil {
		f.t.Fatal(err)
	}
}

func TestChartsShowTheHistory(t *testing.T) {
	f := newFixture(t, dashboard.Config{Prefix: "/ops"})
	if _, text := f.get("/?range=7d"); strings.Contains(text, "<svg") || !strings.Contains(text, "No message was counted") {
		t.Error("a chart of nothing")
	}
	f.counted(100, 0, 50, 20)
	root, text := f.get("/?range=15m")
	var charts, tables int
	ids := map[string]string{}
	for n := range root.Descendants() {
		if id := attr(n, "id"); id != "" {
			ids[id] = textOf(n)
		}
		if attr(n, "style") != "" {
			t.Errorf("<%s> has a style, which the policy of the page forbids", n.Data)
		}
		if n.Data == "svg" && attr(n, "role") == "img" {
			charts++
			for id := range strings.FieldsSeq(attr(n, "aria-labelledby")) {
				defer func() {
					if ids[id] == "" {
						t.Errorf("a chart is labelled by %q, which says nothing", id)
					}
				}()
			}
		}
		if n.Data == "details" && strings.Contains(textOf(n), "The same as a table") {
			tables = strings.Count(textOf(n), time.Now().UTC().Format("2006-01-02")) // around midnight there are two days
		}
	}
	if charts != 3 || tables < 1 || tables > 3 {
		t.Errorf("%d charts with %d rows as a table, want 3 and the minutes with messages", charts, tables)
	}
	for _, want := range []string{
		"dispatched: 100 at most, 20 at last", "half of all within: 35 ms at most", "failed attempts: 10 at most, 2 at last",
		`<polyline class="line-1" points="64.0,160.0 `, // 15 minutes ago there was none
		`504.0,10.0 544.0,160.0 584.0,85.0 624.0,130.0"`, `href="/ops/?range=7d"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the overview has no %q:\n%s", want, text)
		}
	}
	if res, _ := f.do("GET", "/?range=1y", nil); res.StatusCode != http.StatusBadRequest {
		t.Errorf("an unknown range answers %s", res.Status)
	}
	if _, text := f.get("/api/v1/history?range=15m"); !strings.Contains(text, `"dispatched":100,`) || strings.Count(text, `"at"`) != 3 {
		t.Errorf("the history as JSON:\n%s", text)
	}
	if _, text := f.get("/api/v1/history?range=15m&format=csv"); !strings.HasPrefix(text, "at,transport,message,handler,dispatched") {
		t.Errorf("the history as CSV:\n%s", text)
	}
}

func textOf(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}
