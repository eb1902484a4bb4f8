package dashboard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

// refuser is a broker that refuses the orders of some keys, and stores no others.
type refuser struct{ keys string }

var errRefused = errors.New("broker refused: exchange is of type direct, routing key longer than 64 bytes")

func (refuser) Traits() outbox.PublisherTraits { return outbox.PublisherTraits{} }

func (p refuser) Publish(_ context.Context, items []outbox.Item, results chan<- outbox.Result) {
	for _, item := range items {
		err := waybill.ErrUnavailable
		if strings.Contains(p.keys, item.Record.Key) {
			err = errRefused
		}
		results <- outbox.Result{Seq: item.Seq, Err: err}
	}
}

func (refuser) Connect(context.Context) error { return nil }

func (refuser) Isolated() outbox.Publisher { return nil }

func (refuser) Close() error { return nil }

// story fills the database with pending messages, blocked keys, dead letters, retries and
// workers.
func (f *fixture) story() {
	f.t.Helper()
	f.dispatch("o-17", "o-17", "o-23")
	f.refuse("o-17 o-23")
	f.dispatch("o-40", "o-41", "o-42", "o-43")
	q, err := f.db.RetryQueue("billing")
	if err != nil {
		f.t.Fatal(err)
	}
	for i := range 34 {
		attempt := &worker.Attempt{At: time.Now().UTC().Add(-time.Duration(i) * time.Minute), Worker: "app-2/4711", Failure: worker.Failure{
			Handler: "invoices", Type: "*net.OpError", Error: "open invoice: dial tcp 10.0.4.2:443: connect: connection refused", Fingerprint: "5d41402abc4b2a76"}}
		if i%8 == 7 {
			attempt.Failure = worker.Failure{Handler: "mail", Type: "runtime.boundsError", Error: "panic: runtime error: index out of range [2] with length 2", Fingerprint: "9a0364b9e99bb480",
				Stack: "goroutine 71 [running]:\nshop/mail.render({0xc0001a2000, 0x2, 0x2})\n\tshop/mail/render.go:41 +0x1c4\nshop/mail.(*Sender).Send(0xc00011e0c0)\n\tshop/mail/send.go:88 +0x2f1"}
		}
		m := worker.Move{Delivery: &waybill.Delivery{Record: f.record(i)}, Attempt: attempt, DeadLetters: "failed_orders"}
		if i%11 == 10 {
			m.DeadLetters, m.Delay, m.Parked = "", time.Duration(i)*time.Minute, i == 10
		}
		if err := q.Add(f.t.Context(), m); err != nil {
			f.t.Fatal(err)
		}
	}
	id := f.record(0).ID
	if _, err := f.db.ReportWorkers(f.t.Context(), worker.Report{ID: id.String(), Name: "billing", Host: "app-2", PID: 4711, State: worker.StateRunning, Transports: []string{"billing"}, Concurrency: 10, Busy: 1, Handled: 18_204, Failed: 61, HeapBytes: 48 << 20,
		Running: []worker.RunningMessage{{Transport: "billing", Name: "order.placed", ID: id, Handler: "invoices", Seconds: 1.4}}}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) record(i int) *waybill.Record {
	id, err := waybill.NewMessageID()
	if err != nil {
		f.t.Fatal(err)
	}
	return &waybill.Record{ID: id, Name: "order.placed", Key: fmt.Sprint("o-", 100+i), ContentType: "application/json", DispatchedAt: time.Now().UTC().Add(-time.Duration(i+2) * time.Minute),
		Headers: map[string]string{"tenant": "acme"}, Body: fmt.Appendf(nil, `{"orderId":"o-%d","cents":%d,"items":[{"sku":"tea-black","count":2}]}`, 100+i, 4200+i)}
}

// refuse runs a relay until the broker has refused each of the keys.
func (f *fixture) refuse(keys string) {
	f.t.Helper()
	relay, err := outbox.NewRelay(f.db, refuser{keys}, outbox.RelayConfig{Transport: "events", Retry: waybill.Backoff{Delay: time.Hour, MaxDelay: time.Hour}})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(f.t.Context(), 30*time.Second)
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	for ctx.Err() == nil {
		if blocked, err := f.db.Blocked(ctx, "", 0); err == nil && len(blocked) == len(strings.Fields(keys)) {
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		f.t.Fatal(err)
	}
}

func TestBlockedKeysAreReleased(t *testing.T) {
	blockedKeysAreReleased(t, newFixture(t, dashboard.Config{}))
}

// relaysAreNamed asks for the relay of a key, whose transport has one that reports.
func relaysAreNamed(t *testing.T, f *fixture) {
	t.Helper()
	f.dispatch("mine")
	if _, text := f.get("/outbox?key=mine"); !strings.Contains(text, "No relay reports for its transport: nothing publishes it.") {
		t.Errorf("without a relay:\n%s", text)
	}
	for _, transport := range []string{"events", "elsewhere"} {
		id, err := uuid.NewV7()
		if err != nil {
			t.Fatal(err)
		}
		if err := f.db.Report(t.Context(), outbox.Report{Relay: id, Transport: transport, Problem: "connection refused"}); err != nil {
			t.Fatal(err)
		}
	}
	want := fmt.Sprintf("Its relay is process %d on ", os.Getpid())
	if _, text := f.get("/outbox?key=mine"); !strings.Contains(text, want) || !strings.Contains(text, "connection refused") {
		t.Errorf("no %q:\n%s", want, text)
	}
}

// The servers are private ones of the test.
func TestPagesOnServers(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		db, err := waypg.Open(t.Context(), testserver.Postgres(t), waypg.Config{})
		if err != nil {
			t.Fatal(err)
		}
		f := fixtureOn(t, db, dispatcher(t, db), dashboard.Config{})
		blockedKeysAreReleased(t, f)
		causationIsLinked(t, f)
		relaysAreNamed(t, f)
	})
	t.Run("mariadb", func(t *testing.T) {
		db, err := waymysql.Open(t.Context(), mariaDB(t), waymysql.Config{})
		if err != nil {
			t.Fatal(err)
		}
		f := fixtureOn(t, db, dispatcher(t, db), dashboard.Config{})
		blockedKeysAreReleased(t, f)
		causationIsLinked(t, f)
		relaysAreNamed(t, f)
	})
}

func TestBlockedKeysAreListedPageByPage(t *testing.T) {
	f := newFixture(t, dashboard.Config{})
	f.dispatch("k0")
	db, err := sql.Open("sqlite", "shop.db")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// Of equal age, but for a hundredth of them.
	_, err = db.ExecContext(t.Context(), `INSERT INTO waybill_outbox_blocked (transport, partition_key, row_id, message_id, message_name, failures, first_failed_at, next_attempt_at, last_error, policy)
		WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 250)
		SELECT 1, 'key-' || n, n, randomblob(16), 'order.placed', 3, 1700000000000000 + (n % 100 = 0), 9000000000000000, 'exchange is full', 'block' FROM n`)
	if err != nil {
		t.Fatal(err)
	}
	seen, pages := map[string]int{}, 0
	for path := "/outbox?transport=events"; path != ""; pages++ {
		_, text := f.get(path)
		for _, key := range regexp.MustCompile(`<td><code>(key-\d+)</code>`).FindAllStringSubmatch(text, -1) {
			seen[key[1]]++
		}
		next := regexp.MustCompile(`<a href="([^"]+)">More blocked keys`).FindStringSubmatch(text)
		if path = ""; next != nil {
			path = html.UnescapeString(next[1])
		}
	}
	if len(seen) != 250 || pages != 3 || slices.Max(slices.Collect(maps.Values(seen))) != 1 {
		t.Errorf("%d keys on %d pages, want 250 on 3, each once", len(seen), pages)
	}
	if res, _ := f.do("GET", "/outbox?blocked=x", nil); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a wrong place in the list: %s", res.Status)
	}
}

func blockedKeysAreReleased(t *testing.T, f *fixture) {
	t.Helper()
	f.story()
	for _, path := range []string{"/", "/outbox", "/failed", "/failed/list", "/failed/1", "/failed/1/edit", "/failed/retry?all=true", "/retries", "/inbox", "/inbox?id=o-1", "/workers", "/audit", "/system", "/operations", "/api/v1/overview", "/api/v1/failed?format=csv"} {
		f.get(path)
	}
	if res, _ := f.submit("/failed/retry?fingerprint=5d41402abc4b2a76", "/failed/retry", nil); !strings.Contains(f.ended(res), "27 of 27") {
		t.Error("the group was not retried")
	}
	for path, want := range map[string]string{
		"/": "refuses the next message of 2 keys or routes", "/outbox?key=o-17": "<strong>The key o-17 of events is blocked, and its first message is tried again", "/outbox?key=o-0": "<strong>Nothing blocks the key o-0.</strong> None of its messages waits here.", "/outbox": "routing key longer than 64 bytes", "/workers": "order.placed in invoices, 1.4s",
		"/failed": "index out of range", "/failed/8": "goroutine 71", "/outbox/release?all=true": "<strong>2 blocked entries</strong> due at once, with 3 waiting messages",
	} {
		if _, text := f.get(path); !strings.Contains(text, want) {
			t.Errorf("%s has no %q:\n%s", path, want, text)
		}
	}
	res, _ := f.submit("/outbox/release?transport=events&key=o-17", "/outbox/release", url.Values{"skip_head": {"true"}})
	if text := f.ended(res); !strings.Contains(text, "1 of 1") {
		t.Errorf("the operation:\n%s", text)
	}
	letters, err := f.db.Failed(t.Context(), admin.FailedQuery{Key: "o-17"})
	if err != nil || len(letters) != 1 || letters[0].State != admin.Skipped {
		t.Errorf("Failed = %+v, %v", letters, err)
	}
	audit, err := f.db.Audit(t.Context(), 0, 1)
	if err != nil || len(audit) != 1 || !strings.Contains(string(audit[0].Filter), "o-17") {
		t.Errorf("Audit = %+v, %v", audit, err)
	}
	workers, err := f.db.Workers(t.Context())
	if err != nil || len(workers) != 1 {
		t.Fatalf("Workers = %+v, %v", workers, err)
	}
	// A ULID is no id of a process.
	if res, _ := f.do("POST", "/workers/01ARZ3NDEKTSV4RRFFQ69G5FAV/stop", url.Values{}); res.StatusCode != http.StatusNotFound {
		t.Errorf("stopping a ULID answers %s", res.Status)
	}
	f.do("POST", "/workers/"+workers[0].ID+"/stop", url.Values{})
	if workers, err = f.db.Workers(t.Context()); err != nil || workers[0].StopRequestedAt == nil {
		t.Errorf("Workers = %+v, %v", workers, err)
	}
}
