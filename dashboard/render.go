package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

//go:embed templates
var templates embed.FS

// pages are the parsed templates.
type pages struct {
	cfg    Config
	byName map[string]*template.Template
}

// A view is the data of a page.
type view struct {
	Title   string
	Data    any
	Refresh int         // seconds until the page loads itself again; zero means never
	Paused  string      // address of the page with the other choice of refreshing; empty if it has none
	Exports [][2]string // names of formats, and addresses
	who     who
}

// User is the user of the page.
func (v view) User() who { return v.who }

func parsePages(cfg Config) (*pages, error) {
	style, err := static.ReadFile("static/style.css")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(style)
	p := &pages{cfg: cfg, byName: map[string]*template.Template{}}
	layout, err := template.New("layout.html").Funcs(template.FuncMap{
		"at":       func(path string) string { return cfg.Prefix + path },
		"style":    func() string { return cfg.Prefix + "/static/style.css?" + hex.EncodeToString(sum[:6]) },
		"title":    func() string { return cfg.Title },
		"readonly": func() bool { return cfg.ReadOnly },
		"counted":  counted,
		"count":    count, "ago": ago, "reported": reported, "moment": moment, "seconds": seconds, "size": size, "percent": func(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) },
		"link": link,
		"dict": dict, "several": several, "short": shorten,
		"blocked": blockedLink, "states": func() []string { return failedStates }, "none": func() admin.FailedGroup { return admin.FailedGroup{} },
		"attempts": attemptsLink, "stored": storedLink,
		"text": func(v any) string { return fmt.Sprint(v) }, "heap": func(n uint64) string { return size(int(n)) },
		"message":   func(n int64) string { return "/failed/" + strconv.FormatInt(n, 10) },
		"operation": func(n int) string { return "/operations/" + strconv.Itoa(n) },
		"field": func(label, name, value string) map[string]any {
			return map[string]any{"Label": label, "Name": name, "Value": value}
		},
	}).ParseFS(templates, "templates/layout.html")
	if err != nil {
		return nil, err
	}
	files, err := fs.Glob(templates, "templates/*.html")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		own, err := layout.Clone()
		if err == nil {
			own, err = own.ParseFS(templates, file)
		}
		if err != nil {
			return nil, err
		}
		p.byName[strings.TrimSuffix(path.Base(file), ".html")] = own
	}
	return p, nil
}

// render writes a page, or nothing if its template fails.
func (p *pages) render(w http.ResponseWriter, status int, name string, v view) error {
	var b bytes.Buffer
	if err := p.byName[name].ExecuteTemplate(&b, "layout.html", v); err != nil {
		return fmt.Errorf("page %s: %w", name, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = b.WriteTo(w) // the browser may have gone
	return nil
}

// page answers a request with a page.
func (d *Dashboard) page(r *request, name, title string, data any) error {
	return d.pages.render(r.w, http.StatusOK, name, view{Title: title, Data: data, who: r.who, Exports: exports(name, r.URL.Query())})
}

// livePage is a page that may load itself again, as its address says. One with a form does so
// only when asked: it would take away typed text.
func (d *Dashboard) livePage(r *request, name, title string, data any) error {
	v := view{Title: title, Data: data, Exports: exports(name, r.URL.Query()), who: r.who}
	values := r.URL.Query()
	choice := values.Get("refresh")
	values.Del("refresh")
	quiet := name == "outbox" || name == "groups" || name == "retries" || name == "workers"
	if choice == "on" || choice == "" && !quiet {
		v.Refresh = 10
		values.Set("refresh", "off")
	} else {
		values.Set("refresh", "on")
	}
	if c, ok := data.(interface{ Counting() bool }); ok && c.Counting() {
		v.Refresh = 2
	}
	v.Paused = d.cfg.Prefix + r.URL.Path + "?" + values.Encode()
	return d.pages.render(r.w, http.StatusOK, name, v)
}

// link returns a path with parameters, pairs of names and values; empty ones are left out.
func link(path string, pairs ...string) string {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Add(pairs[i], pairs[i+1])
		}
	}
	return strings.TrimSuffix(path+"?"+v.Encode(), "?")
}

// attemptsLink is the address of the failed attempts at a message of a retry queue.
func attemptsLink(transport string, id waybill.MessageID) string {
	return "/retries/" + url.PathEscape(transport) + "/" + id.String()
}

// dict makes a map of pairs, for templates with several arguments.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// count returns n with thousands separators.
func count(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural returns "1 message", "2 messages".
func plural(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "y") && !strings.HasSuffix(noun, "ey"):
		return count(n) + " " + strings.TrimSuffix(noun, "y") + "ies"
	}
	return count(n) + " " + noun + "s"
}

// several returns the first of names, and how many there are besides.
func several(names []string) string {
	switch len(names) {
	case 0:
		return ""
	case 1:
		return names[0]
	}
	return fmt.Sprintf("%s +%d", names[0], len(names)-1)
}

// shorten returns the beginning of a long text.
func shorten(n int, s string) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}

// seconds returns an age in seconds as a duration.
func seconds(s float64) string { return duration(time.Duration(s * float64(time.Second))) }

// duration returns d in its two largest units.
func duration(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd %dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= 10*time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return fmt.Sprintf("%.1fs", max(0, d.Seconds()))
}

// size returns a number of bytes.
func size(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// ago returns a time, relative to now, with the time itself as its title.
func ago(at any) template.HTML {
	t, ok := timeOf(at)
	if !ok {
		return "–"
	}
	text := duration(time.Since(t)) + " ago"
	if d := time.Until(t); d > 0 {
		text = "in " + duration(d)
	}
	return timeHTML(t, text)
}

// reported returns a time of a report as ago does, by the clock of the report.
func reported(r interface{ Ago(time.Time) time.Duration }, at time.Time) template.HTML {
	return timeHTML(at, duration(r.Ago(at))+" ago")
}

// counted tells how old counts are that a page has not waited for.
func counted(at time.Time) string {
	switch age := time.Since(at); {
	case at.IsZero():
		return "Counts take a moment here. Load the page again; a count that takes more than a minute is not shown."
	case age > time.Second:
		return "Counted " + duration(age) + " ago."
	}
	return ""
}

// moment returns a time in UTC.
func moment(at any) template.HTML {
	t, ok := timeOf(at)
	if !ok {
		return "–"
	}
	return timeHTML(t, t.UTC().Format("2006-01-02 15:04:05.000"))
}

// timeHTML has only digits and letters of this file in it.
func timeHTML(t time.Time, text string) template.HTML {
	full := t.UTC().Format(time.RFC3339Nano)
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s">%s</time>`, full, full, text))
}

func timeOf(at any) (time.Time, bool) {
	switch at := at.(type) {
	case time.Time:
		return at, !at.IsZero()
	case *time.Time:
		if at != nil {
			return *at, true
		}
	}
	return time.Time{}, false
}

// writeJSON answers with v, which can be encoded.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	_ = enc.Encode(v) // the client may have gone
}
