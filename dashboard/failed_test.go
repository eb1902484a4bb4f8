package dashboard_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/dashboard"
)

func TestGroupsComePageByPage(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	for i := range 7 { // the fingerprint is the length
		f.letters(1+i%2, strings.Repeat("e", i+1), `{}`)
	}
	next := regexp.MustCompile(`href="(/failed\?[^"]*after=[^"]*)">Next<`)
	row := regexp.MustCompile(`<code class="dim">(f\d+)</code>`)
	var got []string
	pages := 0
	for path := "/failed?name=order.placed&limit=3"; path != ""; pages++ {
		_, text := f.get(path)
		if !strings.Contains(text, "10 dead letters in 7 groups") {
			t.Errorf("%s does not count all groups:\n%s", path, text)
		}
		if strings.Contains(text, ">First page<") != (pages > 0) {
			t.Errorf("%s: a link to the first page, or none:\n%s", path, text)
		}
		for _, m := range row.FindAllStringSubmatch(text, -1) {
			got = append(got, m[1])
		}
		path = ""
		if m := next.FindStringSubmatch(text); m != nil {
			path = strings.ReplaceAll(m[1], "&amp;", "&")
			if !strings.Contains(path, "name=order.placed") || !strings.Contains(path, "limit=3") {
				t.Errorf("the next page loses the filter: %s", path)
			}
		}
	}
	if want := "[f7 f6 f5 f4 f3 f2 f1]"; fmt.Sprint(got) != want || pages != 3 {
		t.Errorf("%d pages have %v, want %s", pages, got, want)
	}
	if res, text := f.do("GET", "/failed?after=x", nil); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a wrong place answers %s\n%s", res.Status, text)
	}
}

func TestGroupsShowTheirLastDay(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.letters(3, "refused", `{}`)
	_, text := f.get("/failed")
	if want := `aria-label="3 in 24 hours, 3 in the last one"><rect x="92" y="0" width="3" height="24"`; !strings.Contains(text, want) {
		t.Errorf("the page has no %s:\n%s", want, text)
	}
}
