package dashboard

import (
	"cmp"
	"encoding/json"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// A failedFilter selects dead letters, by the parameters of an address. As JSON it is in the
// audit, in the form of the command line.
type failedFilter struct {
	Numbers          []int64 `json:"numbers,omitempty"`
	State            string  `json:"state,omitempty"`
	Transport        string  `json:"transport,omitempty"`
	FailureTransport string  `json:"failures,omitempty"`
	Name             string  `json:"name,omitempty"`
	Key              string  `json:"key,omitempty"`
	Handler          string  `json:"handler,omitempty"`
	Error            string  `json:"error,omitempty"`
	Fingerprint      string  `json:"fingerprint,omitempty"`
	Source           string  `json:"source,omitempty"`
	Since            string  `json:"since,omitempty"`
	Until            string  `json:"until,omitempty"`
	All              bool    `json:"all,omitempty"`
}

var (
	failedStates  = []string{admin.Skipped, admin.Failed, admin.Retrying, admin.Removed}
	failedSources = []string{admin.FromOutbox, admin.FromWorker}
)

// fields are the text parameters of f, by their names.
func (f *failedFilter) fields() map[string]*string {
	return map[string]*string{
		"state": &f.State, "transport": &f.Transport, "failures": &f.FailureTransport, "name": &f.Name, "key": &f.Key, "handler": &f.Handler,
		"error": &f.Error, "fingerprint": &f.Fingerprint, "source": &f.Source, "since": &f.Since, "until": &f.Until,
	}
}

// parseFilter reads the parameters of an address or a form.
func parseFilter(values url.Values) (f failedFilter, err error) {
	for name, field := range f.fields() {
		*field = values.Get(name)
	}
	f.All = values.Get("all") == "true"
	for _, text := range values["number"] {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n <= 0 {
			return f, bad("number: "+strconv.Quote(text)+" is not the number of a dead letter", "the list has the numbers")
		}
		f.Numbers = append(f.Numbers, n)
	}
	return f, f.check()
}

func (f failedFilter) check() error {
	if f.State != "" && !slices.Contains(failedStates, f.State) {
		return bad("state: unknown state "+strconv.Quote(f.State), "skipped, failed, retrying or removed")
	}
	if f.Source != "" && !slices.Contains(failedSources, f.Source) {
		return bad("source: unknown source "+strconv.Quote(f.Source), "outbox or worker")
	}
	_, err := f.query()
	return err
}

// values returns the parameters of f.
func (f failedFilter) values() url.Values {
	v := url.Values{}
	for name, field := range f.fields() {
		if *field != "" {
			v.Set(name, *field)
		}
	}
	for _, n := range f.Numbers {
		v.Add("number", strconv.FormatInt(n, 10))
	}
	if f.All {
		v.Set("all", "true")
	}
	return v
}

// Empty reports whether f selects nothing in particular.
func (f failedFilter) Empty() bool { return reflect.ValueOf(f).IsZero() }

// query returns the query of f.
func (f failedFilter) query() (q admin.FailedQuery, err error) {
	q = admin.FailedQuery{
		Numbers: f.Numbers, State: f.State, Transport: f.Transport, FailureTransport: f.FailureTransport, Name: f.Name, Key: f.Key,
		Handler: f.Handler, Error: f.Error, Fingerprint: f.Fingerprint, Source: f.Source,
	}
	now := time.Now()
	if q.Since, err = parseMoment("since", f.Since, now); err != nil {
		return q, err
	}
	q.Until, err = parseMoment("until", f.Until, now)
	return q, err
}

// audited returns f as the audit keeps it.
func (f failedFilter) audited() []byte {
	text, _ := json.Marshal(f) // strings and numbers
	return text
}

// parseMoment reads a time, or an age such as 2h, 3d or 1d12h as the time so long before now.
func parseMoment(name, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	days, rest, isDays := strings.Cut(text, "d")
	if n, err := strconv.Atoi(days); isDays && err == nil && n >= 0 && n < 10_000 {
		now, text = now.AddDate(0, 0, -n), cmp.Or(rest, "0")
	}
	if age, err := time.ParseDuration(text); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, bad(name+": "+strconv.Quote(text)+" is neither a time nor an age", "such as 2026-11-23T15:04:05Z, 2026-11-23, 2h or 3d; times are UTC")
}

// page is the part of a list that an address selects.
type page struct {
	After int64
	Limit int
}

const maxPage = 1000

// parsePage reads after and limit.
func parsePage(values url.Values) (p page, err error) {
	p.Limit = 50
	if text := values.Get("after"); text != "" {
		if p.After, err = strconv.ParseInt(text, 10, 64); err != nil || p.After < 0 {
			return p, bad("after: "+strconv.Quote(text)+" is not a number", "leave it out for the first page")
		}
	}
	if text := values.Get("limit"); text != "" {
		if p.Limit, err = strconv.Atoi(text); err != nil || p.Limit < 1 || p.Limit > maxPage {
			return p, bad("limit: "+strconv.Quote(text)+" is not a number from 1 to "+strconv.Itoa(maxPage), "")
		}
	}
	return p, nil
}

// upTo returns up to limit items of fetch, and whether there are more.
func upTo[T any](limit int, fetch func(limit int) ([]T, error)) (items []T, more bool, err error) {
	if items, err = fetch(limit + 1); err != nil || len(items) <= limit {
		return items, false, err
	}
	return items[:limit], true, nil
}
