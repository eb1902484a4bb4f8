package waytest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/worker"
)

// operatorOf returns the further view of the dead letters, or skips the case.
func (s *fixture[TX]) operatorOf() admin.DeadLetters {
	s.t.Helper()
	db, ok := s.Store.(admin.DeadLetters)
	if !ok {
		s.t.Skip("the store is no admin.DeadLetters")
	}
	return db
}

// bury adds an order as a dead letter, with the attempt n.
func bury(t testing.TB, q worker.RetryQueue, o order, n int, to string) {
	t.Helper()
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: arrived(t, o), Attempt: attempt(n), DeadLetters: to}))
}

func filtersSelectDeadLetters[TX any](t *testing.T, s *fixture[TX]) {
	s.operatorOf()
	q, letters := s.retries(0), s.deadLetters()
	for _, l := range []struct {
		order
		attempt int
		to      string
	}{{order{"x", 0}, 1, "lost"}, {order{"y", 0}, 2, "lost"}, {order{"z", 0}, 12, "other"}} {
		bury(t, q, l.order, l.attempt, l.to)
		time.Sleep(2 * time.Millisecond) // each has a time of its own, also where times are in milliseconds
	}
	all, err := letters.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(all) != 3 {
		t.Fatalf("Failed = %+v, %v", all, err)
	}
	for _, c := range []struct {
		q    admin.FailedQuery
		want string
	}{
		{admin.FailedQuery{Source: admin.FromWorker}, "xyz"},
		{admin.FailedQuery{Source: admin.FromOutbox}, ""},
		{admin.FailedQuery{FailureTransport: "other"}, "z"},
		{admin.FailedQuery{Handler: "mail"}, "xyz"},
		{admin.FailedQuery{Handler: "mai"}, ""},
		{admin.FailedQuery{Fingerprint: "f2"}, "y"},
		{admin.FailedQuery{Error: "REFUSED 1"}, "xz"},
		{admin.FailedQuery{Error: "refused_1"}, ""},
		{admin.FailedQuery{Error: "%"}, ""},
		{admin.FailedQuery{Since: all[1].FailedAt}, "yz"},
		{admin.FailedQuery{Until: all[1].FailedAt}, "x"},
		{admin.FailedQuery{Since: all[1].FailedAt, Until: all[2].FailedAt, Error: "refused"}, "y"},
		{admin.FailedQuery{Error: "refused", Limit: 1, After: all[0].Number}, "y"},
	} {
		found, err := letters.Failed(t.Context(), c.q)
		got := ""
		for _, m := range found {
			got += m.Key
		}
		if err != nil || got != c.want {
			t.Errorf("Failed(%+v) = %q, %v, want %q", c.q, got, err, c.want)
		}
	}
}

func groupsAreOfOneFingerprint[TX any](t *testing.T, s *fixture[TX]) {
	operator, q := s.operatorOf(), s.retries(0)
	for _, key := range []string{"a", "b", "c"} {
		bury(t, q, order{key, 0}, 1, "lost")
	}
	bury(t, q, order{"y", 0}, 2, "lost")
	groups, err := operator.FailedGroups(t.Context(), admin.FailedQuery{})
	if err != nil || len(groups) != 2 {
		t.Fatalf("FailedGroups = %+v, %v, want two", groups, err)
	}
	newest, err := s.deadLetters().Failed(t.Context(), admin.FailedQuery{Fingerprint: "f1", Limit: 3})
	if err != nil || len(newest) != 3 {
		t.Fatalf("Failed = %+v, %v", newest, err)
	}
	want := admin.FailedGroup{
		Fingerprint: "f1", Messages: 3, FirstFailedAt: attempt(1).At, LastFailedAt: newest[2].FailedAt,
		Names: []string{"order.placed"}, Handlers: []string{"mail"}, Example: newest[2].Number, Error: "refused 1",
	}
	if diff := cmp.Diff(want, groups[0]); diff != "" {
		t.Errorf("the largest group (-want +got):\n%s", diff)
	}
	if one, err := operator.FailedGroups(t.Context(), admin.FailedQuery{Key: "y"}); err != nil || len(one) != 1 || one[0].Messages != 1 {
		t.Errorf("FailedGroups of a key = %+v, %v", one, err)
	}
}

func groupsHaveTheirHours[TX any](t *testing.T, s *fixture[TX]) {
	operator, q := s.operatorOf(), s.retries(0)
	for _, key := range []string{"a", "b", "c"} {
		bury(t, q, order{key, 0}, 1, "lost")
	}
	bury(t, q, order{"y", 0}, 2, "lost")
	last, err := s.deadLetters().Failed(t.Context(), admin.FailedQuery{Fingerprint: "f2"})
	if err != nil || len(last) != 1 {
		t.Fatalf("Failed = %+v, %v", last, err)
	}
	soon := last[0].FailedAt.Add(time.Minute)
	for _, c := range []struct {
		q    admin.FailedQuery
		at   time.Time
		want []admin.FailedHour
	}{
		{admin.FailedQuery{}, soon, []admin.FailedHour{{Fingerprint: "f1", Messages: 3}, {Fingerprint: "f2", Messages: 1}}},
		{admin.FailedQuery{Key: "b"}, soon.Add(5 * time.Hour), []admin.FailedHour{{Fingerprint: "f1", Ago: 5, Messages: 1}}},
		{admin.FailedQuery{Fingerprint: "f2"}, last[0].FailedAt.Add(24*time.Hour - time.Microsecond), []admin.FailedHour{{Fingerprint: "f2", Ago: 23, Messages: 1}}},
		{admin.FailedQuery{Fingerprint: "f2"}, last[0].FailedAt.Add(24 * time.Hour), []admin.FailedHour{}},
		{admin.FailedQuery{Fingerprint: "f2"}, last[0].FailedAt, []admin.FailedHour{}},
		{admin.FailedQuery{Since: soon}, soon, []admin.FailedHour{}},
	} {
		got, err := operator.FailedHours(t.Context(), c.q, c.at)
		slices.SortFunc(got, func(a, b admin.FailedHour) int { return strings.Compare(a.Fingerprint, b.Fingerprint) })
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("FailedHours(%+v, %v): %v (-want +got):\n%s", c.q, c.at, err, diff)
		}
	}
}

func editedBodyIsReplayed[TX any](t *testing.T, s *fixture[TX]) {
	operator, q, letters := s.operatorOf(), s.retries(0), s.deadLetters()
	bury(t, q, order{"x", 0}, 1, "lost")
	m := s.onlyLetter()
	before, err := letters.FailedContent(t.Context(), m.Number)
	try(t, "FailedContent", err)
	body := []byte(`{"key":"x","seq":7}`)
	if err := operator.EditFailed(t.Context(), m.Number, []byte("{}"), body); !errors.Is(err, admin.ErrChanged) {
		t.Errorf("EditFailed of another body = %v, want ErrChanged", err)
	}
	try(t, "EditFailed", operator.EditFailed(t.Context(), m.Number, before.Body, body))
	_, err = letters.RetryFailed(t.Context(), m.Number)
	try(t, "RetryFailed", err)
	if err := operator.EditFailed(t.Context(), m.Number, body, before.Body); !errors.Is(err, admin.ErrChanged) {
		t.Errorf("EditFailed of one that is replayed = %v, want ErrChanged", err)
	}
	d := receive(t, q, 1)[0]
	if got := string(d.Record.Body); got != string(body) || d.Record.ID != m.ID {
		t.Errorf("the replay is %s of %s, want %s of %s", got, d.Record.ID, body, m.ID)
	}
	entries, err := operator.Audit(t.Context(), 0, 0)
	if err != nil || len(entries) != 2 || entries[1].Action != "failed edit" || entries[1].Messages != 1 {
		t.Fatalf("Audit = %+v, %v, want the retry and the edit", entries, err)
	}
	var filter struct {
		Number int64  `json:"number"`
		Body   []byte `json:"original_body_base64"`
	}
	if err := json.Unmarshal(entries[1].Filter, &filter); err != nil || filter.Number != m.Number || string(filter.Body) != string(before.Body) {
		t.Errorf("the audit has %s, %v, want the body %s", entries[1].Filter, err, before.Body)
	}
}

// emptyBodyIsEdited gives both forms of an empty body in Go: no database keeps NULL for one,
// or compares with it.
func emptyBodyIsEdited[TX any](t *testing.T, s *fixture[TX]) {
	operator, letters := s.operatorOf(), s.deadLetters()
	bury(t, s.retries(0), order{"x", 0}, 1, "lost")
	m := s.onlyLetter()
	before, err := letters.FailedContent(t.Context(), m.Number)
	try(t, "FailedContent", err)
	for _, empty := range [][]byte{nil, {}} {
		try(t, "EditFailed to empty", operator.EditFailed(t.Context(), m.Number, before.Body, empty))
		content, err := letters.FailedContent(t.Context(), m.Number)
		if err != nil || len(content.Body) > 0 {
			t.Fatalf("the edited body is %q, %v, want an empty one", content.Body, err)
		}
		try(t, "EditFailed from empty", operator.EditFailed(t.Context(), m.Number, empty, before.Body))
	}
}

func newMessageNamesItsCause[TX any](t *testing.T, s *fixture[TX]) {
	operator, q := s.operatorOf(), s.retries(0)
	sent := arrived(t, order{"x", 0})
	sent.Record.Headers[waybill.HeaderHandledBy] = "mail"
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: sent, Attempt: attempt(1), DeadLetters: "lost"}))
	m := s.onlyLetter()
	for _, want := range []int{1, 0} {
		if n, err := operator.RetryFailedAsNew(t.Context(), m.Number, m.Number+1); err != nil || n != want {
			t.Errorf("RetryFailedAsNew = %d, %v, want %d", n, err, want)
		}
	}
	d := receive(t, q, 1)[0]
	want := map[string]string{"tenant": "acme", waybill.HeaderCausationID: m.ID.String()}
	if diff := cmp.Diff(want, d.Record.Headers); diff != "" || d.Record.ID == m.ID || d.Failures != 0 || string(d.Record.Body) != string(sent.Record.Body) {
		t.Errorf("the new message is %+v, headers (-want +got):\n%s", d.Record, diff)
	}
	if age := time.Since(d.Record.DispatchedAt); age > time.Minute || age < -time.Minute {
		t.Errorf("the new message is %v old", age)
	}
	removed, err := s.deadLetters().Failed(t.Context(), admin.FailedQuery{State: admin.Removed})
	if err != nil || len(removed) != 1 || removed[0].Number != m.Number {
		t.Errorf("on record is %+v, %v, want the old message", removed, err)
	}
}

func replayThatFailsIsSeen[TX any](t *testing.T, s *fixture[TX]) {
	operator, q, letters := s.operatorOf(), s.retries(0), s.deadLetters()
	bury(t, q, order{"x", 0}, 1, "lost")
	bury(t, q, order{"y", 0}, 1, "lost")
	replayed, err := letters.Failed(t.Context(), admin.FailedQuery{})
	try(t, "Failed", err)
	_, err = letters.RetryFailed(t.Context(), replayed[0].Number, replayed[1].Number)
	try(t, "RetryFailed", err)
	want := func(n int) {
		t.Helper()
		if got, err := operator.FailedAgain(t.Context(), replayed...); err != nil || got != n {
			t.Errorf("FailedAgain = %d, %v, want %d", got, err, n)
		}
	}
	want(0)
	ds := receive(t, q, 2)
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: ds[0], Attempt: attempt(2), Parked: true}))
	want(1)
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: ds[1], Attempt: attempt(2), DeadLetters: "lost"}))
	want(2)
}

func statsCountWhatFailed[TX any](t *testing.T, s *fixture[TX]) {
	operator, q, letters := s.retryAdmin(), s.retries(0), s.deadLetters()
	bury(t, q, order{"x", 0}, 1, "lost")
	bury(t, q, order{"y", 0}, 1, "lost")
	want := func(stats admin.WorkerStats) {
		t.Helper()
		stats.Transport = "t"
		if got, err := operator.WorkerStats(t.Context()); err != nil || len(got) != 1 || got[0] != stats {
			t.Errorf("WorkerStats = %+v, %v, want %+v", got, err, stats)
		}
	}
	want(admin.WorkerStats{Failed: 2})
	replayed, err := letters.Failed(t.Context(), admin.FailedQuery{})
	try(t, "Failed", err)
	_, err = letters.RetryFailed(t.Context(), replayed[0].Number, replayed[1].Number)
	try(t, "RetryFailed", err)
	want(admin.WorkerStats{Retrying: 2})
	ds := receive(t, q, 2)
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: ds[0], Attempt: attempt(2), Parked: true}))
	want(admin.WorkerStats{Retrying: 2, Parked: 1})
	try(t, "Move", q.Move(t.Context(), worker.Move{Delivery: ds[1], Attempt: attempt(2), DeadLetters: "lost"}))
	want(admin.WorkerStats{Retrying: 1, Parked: 1, Failed: 1})
}

func changesAreAudited[TX any](t *testing.T, s *fixture[TX]) {
	operator, retries, q, letters := s.operatorOf(), s.retryAdmin(), s.retries(0), s.deadLetters()
	bury(t, q, order{"x", 0}, 1, "lost")
	bury(t, q, order{"y", 0}, 1, "lost")
	try(t, "Add", q.Add(t.Context(), worker.Move{Delivery: arrived(t, order{"z", 0}), Attempt: attempt(1), Parked: true}))
	found, err := letters.Failed(t.Context(), admin.FailedQuery{})
	try(t, "Failed", err)
	named := admin.WithAction(t.Context(), admin.Action{Actor: "anna@shop", Filter: json.RawMessage(`{"key": "x"}`)})
	for _, change := range []func(context.Context) (int, error){
		func(ctx context.Context) (int, error) { return letters.RetryFailed(ctx, found[0].Number) },
		func(ctx context.Context) (int, error) { return letters.RemoveFailed(ctx, found[1].Number) },
		func(ctx context.Context) (int, error) { return retries.ReleaseRetries(ctx, "t", "z") },
	} {
		for _, want := range []int{1, 0} { // the second changes nothing, and is not recorded
			if n, err := change(named); err != nil || n != want {
				t.Errorf("a change of %d messages, %v, want %d", n, err, want)
			}
		}
	}
	bury(t, q, order{"w", 0}, 1, "lost")
	_, err = letters.RemoveFailed(t.Context(), found[1].Number+1, found[1].Number)
	try(t, "RemoveFailed", err)
	entries, err := operator.Audit(t.Context(), 0, 0)
	try(t, "Audit", err)
	var got []string
	for _, e := range slices.Backward(entries) {
		filter := strings.ReplaceAll(string(e.Filter), " ", "")
		got = append(got, fmt.Sprintf("%s by %s: %d of %s", e.Action, e.Actor, e.Messages, filter))
		if age := time.Since(e.At); age > time.Minute || age < -time.Minute {
			t.Errorf("%s was %v ago", e.Action, age)
		}
	}
	want := []string{
		`failed retry by anna@shop: 1 of {"key":"x"}`, `failed remove by anna@shop: 1 of {"key":"x"}`, `retries release by anna@shop: 1 of {"key":"x"}`,
		fmt.Sprintf(`failed remove by %s: 1 of {"numbers":[%d,%d]}`, admin.Actor(), found[1].Number+1, found[1].Number),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the audit (-want +got):\n%s", diff)
	}
	var paged []admin.AuditEntry
	for before := int64(0); len(paged) < len(entries); before = paged[len(paged)-1].Number {
		one, err := operator.Audit(t.Context(), before, 1)
		if err != nil || len(one) != 1 {
			t.Fatalf("Audit before %d = %+v, %v, want one entry", before, one, err)
		}
		paged = append(paged, one...)
	}
	if diff := cmp.Diff(entries, paged); diff != "" {
		t.Errorf("the audit entry by entry (-want +got):\n%s", diff)
	}
	if one, err := operator.Audit(t.Context(), 0, 1); err != nil || len(one) != 1 {
		t.Errorf("Audit of one = %+v, %v", one, err)
	}
}

func messageGivenTwiceIsRetriedOnce[TX any](t *testing.T, s *fixture[TX]) {
	operator, q := s.operatorOf(), s.retries(0)
	bury(t, q, order{"x", 0}, 1, "lost")
	m := s.onlyLetter()
	if n, err := s.deadLetters().RetryFailed(t.Context(), m.Number, m.Number); err != nil || n != 1 {
		t.Errorf("RetryFailed = %d, %v, want 1", n, err)
	}
	if entries, err := operator.Audit(t.Context(), 0, 0); err != nil || len(entries) != 1 || entries[0].Messages != 1 {
		t.Errorf("the audit has %+v, %v, want one message", entries, err)
	}
}
