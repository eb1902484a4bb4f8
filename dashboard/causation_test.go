package dashboard_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/worker"
)

func TestCausationIsLinked(t *testing.T) { causationIsLinked(t, newFixture(t, dashboard.Config{})) }

// caused adds a dead letter, and a message of the retry queue that it has caused.
func (f *fixture) caused() (letter admin.FailedMessage, effect waybill.MessageID) {
	f.t.Helper()
	q, err := f.db.RetryQueue("invoicing")
	if err != nil {
		f.t.Fatal(err)
	}
	first, second := f.record(1), f.record(2)
	second.Headers = map[string]string{waybill.HeaderCausationID: first.ID.String(), waybill.HeaderCorrelationID: "conversation-7"}
	attempt := &worker.Attempt{At: time.Now().UTC(), Worker: "app-2/4711", Failure: worker.Failure{Handler: "invoices", Error: "no card"}}
	for _, m := range []worker.Move{
		{Delivery: &waybill.Delivery{Record: first}, Attempt: attempt, DeadLetters: "failed_orders"},
		{Delivery: &waybill.Delivery{Record: second}, Attempt: attempt, Delay: time.Hour},
	} {
		if err := q.Add(f.t.Context(), m); err != nil {
			f.t.Fatal(err)
		}
	}
	letters, err := f.db.Failed(f.t.Context(), admin.FailedQuery{Transport: "invoicing"})
	if err != nil || len(letters) != 1 {
		f.t.Fatalf("Failed = %+v, %v", letters, err)
	}
	return letters[0], second.ID
}

// causationIsLinked follows the links between two messages.
func causationIsLinked(t *testing.T, f *fixture) {
	t.Helper()
	letter, effect := f.caused()
	to := func(id waybill.MessageID) string { return fmt.Sprintf(`<a href="/inbox?id=%s">`, id) }
	attempts := fmt.Sprintf(`<a href="/retries/invoicing/%s">retries</a>`, effect)
	number := fmt.Sprintf("/failed/%d", letter.Number)
	for path, wants := range map[string][]string{
		number:                                      {to(effect), attempts, "not known"},
		"/inbox?id=" + letter.ID.String():           {to(effect), `<a href="` + number + `">failed</a>`},
		"/retries/invoicing/" + effect.String():     {"Caused by</dt><dd>" + to(letter.ID), "No stored message was caused by it"},
		"/inbox?id=" + effect.String():              {"Caused by</dt><dd>" + to(letter.ID), attempts, "conversation-7"},
		"/api/v1/messages?id=" + letter.ID.String(): {`"source":"failed"`, `"causation_id":"` + letter.ID.String() + `"`},
	} {
		_, text := f.get(path)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q:\n%s", path, want, text)
			}
		}
	}
}

// Ids are shown to each user; headers, of which the correlation is one, to those who see bodies, and neither where
// the rules hide causation ids.
func TestCausationIsHiddenAsHeadersAre(t *testing.T) {
	f := newFixture(t, dashboard.Config{Authenticate: bearerOf(t, map[string]dashboard.Principal{"v": {Name: "vic", Role: dashboard.Viewer}})})
	letter, effect := f.caused()
	for _, path := range []string{"/inbox?id=", "/api/v1/messages?id="} {
		if _, text := f.do("GET", path+effect.String(), nil, func(r *http.Request) { r.Header.Set("Authorization", "Bearer v") }); !strings.Contains(text, letter.ID.String()) || strings.Contains(text, "conversation-7") {
			t.Errorf("%s shows a viewer:\n%s", path, text)
		}
	}
	f = newFixture(t, dashboard.Config{Redact: dashboard.Redaction{Headers: []string{"X-Causation-Id"}}})
	letter, effect = f.caused()
	for _, path := range []string{"/inbox?id=", "/api/v1/messages?id="} {
		if _, text := f.do("GET", path+effect.String(), nil); strings.Contains(text, letter.ID.String()) {
			t.Errorf("%s shows what is redacted:\n%s", path, text)
		}
	}
}
