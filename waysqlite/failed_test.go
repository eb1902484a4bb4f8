package waysqlite_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// refuse settles the first keyed row as refused, with its attempts exhausted.
func refuse(t *testing.T, db *waysqlite.DB, policy outbox.Policy) {
	t.Helper()
	c := claim(t, db, outbox.Keyed)
	if len(c.Rows()) == 0 {
		t.Fatal("nothing to refuse")
	}
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: policy, Exhausted: true})
}

// openParked opens a database with so many rows of the parked key k.
func openParked(t *testing.T, rows int) (*waysqlite.DB, *outbox.Outbox[*sql.Tx]) {
	t.Helper()
	db := open(t, waysqlite.Config{Normal: true})
	out := newOutbox(t, db, outbox.Config{})
	put(t, out, orders("k", rows)...)
	refuse(t, db, outbox.Park)
	return db, out
}

func letGo(t *testing.T, db *waysqlite.DB, q admin.BlockedQuery, keys int) {
	t.Helper()
	if n, err := db.Release(t.Context(), q); err != nil || n != keys {
		t.Fatalf("Release = %d, %v, want %d", n, err, keys)
	}
}

// blocked returns the only entry.
func blocked(t *testing.T, db *waysqlite.DB) admin.BlockedKey {
	t.Helper()
	found, err := db.Blocked(t.Context(), "", 0)
	if err != nil || len(found) != 1 {
		t.Fatalf("Blocked = %+v, %v, want one", found, err)
	}
	return found[0]
}

// ordered lets a pipelined relay publish rows of a key before earlier ones are
// confirmed.
type ordered struct{ *recorder }

func (ordered) Traits() outbox.PublisherTraits {
	return outbox.PublisherTraits{Stream: func(*waybill.Record) string { return "" }}
}

// With several messages of a key in flight, several are refused together. Only the
// refusal of the head counts.
func TestSeveralRefusedMessagesOfAKeyAreOneEntry(t *testing.T) {
	db := open(t, waysqlite.Config{})
	put(t, newOutbox(t, db, outbox.Config{}), order{"k", 0}, order{"k", 1}, order{"k", 2})
	sink := &recorder{refuse: func(*waybill.Record) error { return errRefused }}
	cfg := outbox.RelayConfig{Pipelined: true, Retry: waybill.Backoff{Delay: time.Hour, MaxDelay: time.Hour, Jitter: -1}}
	drain(t, db, ordered{sink}, cfg)
	if b := blocked(t, db); b.Failures != 1 || b.Waiting != 3 {
		t.Errorf("blocked: %+v, want one failure and three that wait", b)
	}
	sink.refuse = nil
	letGo(t, db, admin.BlockedQuery{}, 1)
	drain(t, db, ordered{sink}, cfg)
	if diff := cmp.Diff([]order{{"k", 0}, {"k", 1}, {"k", 2}}, sink.got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

// A message without a result, ahead of a refused one of its key, becomes the head:
// tried first, set aside first, without a counted failure.
func TestKeyIsBlockedFromItsFirstMessage(t *testing.T) {
	for _, policy := range []outbox.Policy{outbox.Block, outbox.Park} {
		db := open(t, waysqlite.Config{})
		put(t, newOutbox(t, db, outbox.Config{}), order{"k", 0}, order{"k", 1}, order{"k", 2}, order{"k", 3})
		c := want(t, db, outbox.Keyed, "k0 k1 k2 k3")
		settle(t, c, c.Rows()[:1], outbox.Failure{Row: c.Rows()[2], Err: errRefused, Policy: policy, Exhausted: policy == outbox.Park})
		b := blocked(t, db)
		if b.HeadID != c.Rows()[1].Record.ID || b.Failures != 0 || b.Waiting != 3 {
			t.Errorf("%s: %+v, want k1 as the head, without failures, and three that wait", policy, b)
		}
		want(t, db, outbox.Keyed, "")
		if policy == outbox.Block {
			c = want(t, db, outbox.Retries, "k1")
			settle(t, c, c.Rows())
			want(t, db, outbox.Keyed, "k2 k3")
			continue
		}
		if b.Parked != 3 {
			t.Errorf("%d rows are set aside, want 3", b.Parked)
		}
		letGo(t, db, admin.BlockedQuery{}, 1)
		want(t, db, outbox.Keyed, "k1 k2 k3")
	}
}

// A failure counts once its claim is settled, and not for a row that an operator
// has skipped meanwhile.
func TestHeadSkippedWhileItIsPublishedBlocksNothing(t *testing.T) {
	for _, policy := range []outbox.Policy{outbox.Block, outbox.Park, outbox.Skip} {
		db := open(t, waysqlite.Config{})
		put(t, newOutbox(t, db, outbox.Config{}), order{"k", 0}, order{"k", 1})
		c := want(t, db, outbox.Keyed, "k0 k1")
		settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused})
		c = want(t, db, outbox.Retries, "k0")
		letGo(t, db, admin.BlockedQuery{Key: "k", SkipHead: true}, 1)
		settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: policy, Exhausted: policy != outbox.Block})
		settle(t, want(t, db, outbox.Keyed, "k1"), nil)
		if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{Pending: 1}) {
			t.Errorf("%s: Backlog = %+v, %v", policy, left, err)
		}
		if found, err := db.Failed(t.Context(), admin.FailedQuery{}); err != nil || len(found) != 1 {
			t.Errorf("%s: Failed = %+v, %v, want k0 once", policy, found, err)
		}
	}
}

// Deleting the head of a blocked key by SQL unblocks the key.
func TestEntryWithoutARowIsDropped(t *testing.T) {
	t.Run("Open", func(t *testing.T) { entryWithoutARowIsDropped(t, open(t, waysqlite.Config{})) })
	t.Run("New", func(t *testing.T) { // one connection reads and writes
		pool, err := sql.Open("sqlite", "file:"+open(t, waysqlite.Config{}).Path()+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		pool.SetMaxOpenConns(1)
		db, err := waysqlite.New(pool, waysqlite.Config{BusyTimeout: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		entryWithoutARowIsDropped(t, db)
	})
}

func entryWithoutARowIsDropped(t *testing.T, db *waysqlite.DB) {
	put(t, newOutbox(t, db, outbox.Config{}), order{"k", 0}, order{"k", 1})
	c := want(t, db, outbox.Keyed, "k0 k1")
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused})
	want(t, db, outbox.Keyed, "") // a cursor stands behind k1 now
	if _, err := db.SQL().Exec("DELETE FROM waybill_outbox WHERE id = ?", c.Rows()[0].ID); err != nil {
		t.Fatal(err)
	}
	want(t, db, outbox.Retries, "")
	want(t, db, outbox.Keyed, "k1")
}

// Thousands of parked keys come back in order beside live messages, and no
// transaction of the release is long.
func TestReleaseOfManyKeysKeepsOrderAndLiveTraffic(t *testing.T) {
	const keys, each = 3000, 2
	db := open(t, waysqlite.Config{Normal: true})
	out := newOutbox(t, db, outbox.Config{})
	var parked []order
	for seq := range each {
		for key := range keys {
			parked = append(parked, order{fmt.Sprint("p", key), seq})
		}
	}
	put(t, out, parked...)
	park := []outbox.Failure{}
	c, err := db.Claim(t.Context(), outbox.DefaultTransport, outbox.Keyed, outbox.ClaimLimit{Rows: keys, Bytes: 1 << 30})
	if err != nil || len(c.Rows()) != keys {
		t.Fatalf("claim of %d rows, %v", len(c.Rows()), err)
	}
	for _, row := range c.Rows() {
		park = append(park, outbox.Failure{Row: row, Err: errRefused, Policy: outbox.Park, Exhausted: true})
	}
	settle(t, c, nil, park...)
	if n := count(t, db, "SELECT count(*) FROM waybill_outbox WHERE bucket = 1024"); n != keys*each {
		t.Fatalf("%d rows are set aside, want %d", n, keys*each)
	}
	var behind []order // waits while its key is parked
	for key := 0; key < keys; key += 3 {
		behind = append(behind, order{fmt.Sprint("p", key), each})
	}
	put(t, out, behind...)
	sink := &recorder{}
	relay, err := outbox.NewRelay(db, sink, outbox.RelayConfig{Batch: 100})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, relay)
	var live sync.WaitGroup
	released := make(chan struct{})
	sent, beside := 0, 0 // beside the release, from begin to end
	var releasing atomic.Bool
	live.Go(func() {
		for ; ; sent++ {
			select {
			case <-released:
				return
			default:
			}
			begun := releasing.Load()
			put(t, out, order{"live", sent})
			if begun && releasing.Load() {
				beside++
			}
			time.Sleep(time.Millisecond)
		}
	})
	releasing.Store(true)
	letGo(t, db, admin.BlockedQuery{}, keys)
	releasing.Store(false)
	close(released)
	live.Wait()
	total := keys*each + len(behind) + sent
	for deadline := time.Now().Add(30 * time.Second); sink.count() < total && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	n := perKey(t, sink.got)
	if len(sink.got) != total || n["live"] != sent {
		t.Errorf("%d rows were published, %d live, want %d, %d", len(sink.got), n["live"], total, sent)
	}
	t.Logf("%d of %d dispatches began and ended during the release", beside, sent)
	if beside < 3 { // as if the release were one transaction
		t.Errorf("%d dispatches began and ended during the release, want some", beside)
	}
}

// A key with more rows than one transaction brings back stays blocked until the
// last row is back.
func TestReleaseOfALongKeyIsBlockedUntilItsEnd(t *testing.T) {
	const rows = 2500
	db, out := openParked(t, rows)
	put(t, out, order{"k", rows})
	stop := make(chan struct{})
	var got []order
	var reader sync.WaitGroup
	reader.Go(func() { // claims as often as it can
		for ended := false; ; {
			select {
			case <-stop:
				ended = true
			default:
			}
			c := claim(t, db, outbox.Keyed)
			for _, row := range c.Rows() {
				var o order
				_ = waybill.JSON{}.Decode(row.Record.Body, &o)
				got = append(got, o)
			}
			settle(t, c, c.Rows())
			if ended && len(c.Rows()) == 0 {
				return
			}
		}
	})
	letGo(t, db, admin.BlockedQuery{Key: "k"}, 1)
	close(stop)
	reader.Wait()
	if n := perKey(t, got); n["k"] != rows+1 {
		t.Errorf("%d rows came, want %d", n["k"], rows+1)
	}
}

// SkipHead skips one row, however many transactions bring back the rest.
func TestSkipHeadOfAParkedKey(t *testing.T) {
	const rows = 1500
	db, _ := openParked(t, rows)
	letGo(t, db, admin.BlockedQuery{SkipHead: true}, 1)
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{Pending: rows - 1}) {
		t.Errorf("Backlog = %+v, %v", left, err)
	}
	if found, err := db.Failed(t.Context(), admin.FailedQuery{}); err != nil || len(found) != 1 || found[0].Failures != 1 {
		t.Errorf("Failed = %+v, %v, want the head", found, err)
	}
}

// An operator's process dispatches nothing itself, and knows no transport.
func TestRetryFailedNeedsNoOutbox(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{To: "events"}, order{"k", 0})
	c, err := db.Claim(t.Context(), "events", outbox.Keyed, outbox.ClaimLimit{Rows: 1, Bytes: 1})
	if err != nil || len(c.Rows()) != 1 {
		t.Fatalf("Claim = %v, %v", c, err)
	}
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Skip, Exhausted: true})
	operator := openAt(t, db.Path(), waysqlite.Config{})
	if n, err := operator.RetryFailed(t.Context(), 1); err != nil || n != 1 {
		t.Errorf("RetryFailed = %d, %v", n, err)
	}
	rows, err := db.Outbox(t.Context(), admin.OutboxQuery{Transport: "events"})
	if err != nil || len(rows) != 1 || rows[0].Key != "k" {
		t.Errorf("in the outbox: %+v, %v", rows, err)
	}
}

// A row that cannot be read can be skipped and shown.
func TestUnreadableRowIsSkipped(t *testing.T) {
	db := open(t, waysqlite.Config{})
	dispatch(t, db, outbox.Config{}, order{"k", 0})
	if _, err := db.SQL().Exec("UPDATE waybill_outbox SET headers = '{oops'"); err != nil {
		t.Fatal(err)
	}
	refuse(t, db, outbox.Skip)
	found, err := db.Failed(t.Context(), admin.FailedQuery{})
	if err != nil || len(found) != 1 {
		t.Fatalf("Failed = %+v, %v", found, err)
	}
	content, err := db.FailedContent(t.Context(), found[0].Number)
	if err != nil {
		t.Fatal(err)
	}
	var headers string
	if err := json.Unmarshal(content.Headers, &headers); err != nil || headers != "{oops" {
		t.Errorf("its headers are shown as %s, %v", content.Headers, err)
	}
	if n, err := db.RetryFailed(t.Context(), found[0].Number); err == nil || n != 0 {
		t.Errorf("RetryFailed = %d, %v, want an error", n, err)
	}
	if again, err := db.Failed(t.Context(), admin.FailedQuery{}); err != nil || !cmp.Equal(again, found) {
		t.Errorf("after the retry that failed: %+v, %v, want %+v", again, err, found)
	}
}

// The documented insert stores a body as TEXT, which equals no BLOB.
func TestDeadLetterWithABodyOfTextIsEdited(t *testing.T) {
	db := open(t, waysqlite.Config{})
	newOutbox(t, db, outbox.Config{})
	const insert = `INSERT INTO waybill_outbox (transport, message_id, message_name, partition_key, body)
		SELECT id, randomblob(16), 'order.placed', 'k', '{"seq":1}' FROM waybill_transport`
	if _, err := db.SQL().Exec(insert); err != nil {
		t.Fatal(err)
	}
	refuse(t, db, outbox.Skip)
	content, err := db.FailedContent(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.EditFailed(t.Context(), 1, []byte(`{"seq":0}`), []byte("{}")); !errors.Is(err, admin.ErrChanged) {
		t.Errorf("EditFailed of another body = %v, want ErrChanged", err)
	}
	if err := db.EditFailed(t.Context(), 1, content.Body, []byte(`{"seq":2}`)); err != nil {
		t.Errorf("EditFailed of the body %s = %v", content.Body, err)
	}
}
