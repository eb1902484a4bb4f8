package waysqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

// pending returns the bodies that wait in the outbox, in order.
func pending(t testing.TB, db *waysqlite.DB, transport string) (all []order) {
	t.Helper()
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed, outbox.Retries} {
		claim, err := db.Claim(t.Context(), transport, part, outbox.ClaimLimit{Rows: 1 << 20, Bytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if err := claim.Settle(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
		for _, row := range claim.Rows() {
			var o order
			if err := (waybill.JSON{}).Decode(row.Record.Body, &o); err != nil {
				t.Fatal(err)
			}
			all = append(all, o)
		}
	}
	return all
}

func count(t testing.TB, db *waysqlite.DB, query string) (n int) {
	t.Helper()
	if err := db.ReadSQL().QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Parsing an insert, with the checks of its table, costs a third of the transaction.
func TestUnitsShareAPreparedInsert(t *testing.T) {
	db := open(t, waysqlite.Config{})
	for i := range 3 {
		dispatch(t, db, outbox.Config{}, order{"k", i})
	}
	if !db.Keeps() {
		t.Error("each unit of work parses the insert of its messages")
	}
	if got := pending(t, db, outbox.DefaultTransport); len(got) != 3 {
		t.Errorf("pending %v", got)
	}
}

func TestFailedCommitIsKnownToHaveFailed(t *testing.T) {
	db := open(t, waysqlite.Config{})
	if _, err := db.SQL().Exec("CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (p INTEGER REFERENCES p DEFERRABLE INITIALLY DEFERRED)"); err != nil {
		t.Fatal(err)
	}
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		if _, err := tx.SQL().Exec("INSERT INTO c VALUES (7)"); err != nil {
			return err
		}
		_, err := tx.Dispatch(ctx, order{"k", 1})
		return err
	})
	if err == nil || errors.Is(err, waybill.ErrCommitUnknown) {
		t.Errorf("InTx = %v, want a foreign key error", err)
	}
	if got := pending(t, db, outbox.DefaultTransport); len(got) != 0 {
		t.Errorf("%v left behind", got)
	}
}

func TestPoolOfSeveralConnectionsIsRefused(t *testing.T) {
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "waybill.db")+"?_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := waysqlite.New(pool, waysqlite.Config{}); err == nil || !strings.Contains(err.Error(), "SetMaxOpenConns(1)") {
		t.Errorf("New with an unlimited pool = %v, want a refusal that says what to call", err)
	}
	if _, err := waysqlite.New(nil, waysqlite.Config{}); err == nil || !strings.Contains(err.Error(), "New needs a pool") {
		t.Errorf("New without a pool = %v, want a refusal", err)
	}
}

// The end of a wait for the writing connection says nothing about a message.
func TestWaitForTheWriterEndsWithTheDeadline(t *testing.T) {
	db := open(t, waysqlite.Config{})
	tx, err := db.SQL().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	q, err := db.RetryQueue("orders")
	if err != nil {
		t.Fatal(err)
	}
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"InTx": db.InTx(ctx, func(context.Context, *sql.Tx) error { return nil }),
		"Add":  q.Add(ctx, worker.Move{Delivery: &waybill.Delivery{Record: &waybill.Record{ID: id, Name: "x", Body: []byte("{}")}}}),
	} {
		if !errors.Is(err, waybill.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s = %v, want ErrUnavailable and DeadlineExceeded", what, err)
		}
	}
}

// A pool of New has one connection, which a unit of work holds.
func TestReadInsideAUnitOfTheOnlyConnectionIsRefused(t *testing.T) {
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "waybill.db")+"?_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	pool.SetMaxOpenConns(1)
	db, err := waysqlite.New(pool, waysqlite.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := newOutbox(t, db, outbox.Config{})
	retries, err := db.RetryQueue("orders")
	if err != nil {
		t.Fatal(err)
	}
	reads := map[string]func(ctx context.Context) error{
		"Contains": func(ctx context.Context) error {
			_, err := db.Contains(ctx, inbox.Entry{Handler: "h", DedupKey: "k"})
			return err
		},
		"OutboxStats":    func(ctx context.Context) error { _, err := db.OutboxStats(ctx); return err },
		"Failed":         func(ctx context.Context) error { _, err := db.Failed(ctx, admin.FailedQuery{}); return err },
		"FailedContent":  func(ctx context.Context) error { _, err := db.FailedContent(ctx, 1); return err },
		"Schedules":      func(ctx context.Context) error { _, _, err := db.Schedules(ctx); return err },
		"InboxLookup":    func(ctx context.Context) error { _, err := db.InboxLookup(ctx, "k"); return err },
		"InboxOlder":     func(ctx context.Context) error { _, err := db.InboxOlder(ctx, time.Hour); return err },
		"InboxRetention": func(ctx context.Context) error { _, err := db.InboxRetention(ctx); return err },
		"Backlog":        func(ctx context.Context) error { _, err := db.Backlog(ctx, outbox.DefaultTransport); return err },
		"SchemaStatus":   func(ctx context.Context) error { _, err := db.SchemaStatus(ctx); return err },
		"SchemaUp":       func(ctx context.Context) error { _, err := db.SchemaUp(ctx); return err },
		"Receive": func(ctx context.Context) error {
			_, err := newQueue(t, db, "q", waysqlite.QueueConfig{}).Receive(ctx, 1)
			return err
		},
		"Retries.Receive": func(ctx context.Context) error { _, err := retries.Receive(ctx, 1); return err },
		"Claim": func(ctx context.Context) error {
			_, err := db.Claim(ctx, outbox.DefaultTransport, outbox.Unkeyed, outbox.ClaimLimit{Rows: 1, Bytes: 1})
			return err
		},
	}
	for name, read := range reads {
		err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return read(ctx)
		})
		if !errors.Is(err, waybill.ErrNestedTransaction) {
			t.Errorf("%s in a unit of work = %v, want ErrNestedTransaction", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if seen, err := db.Contains(ctx, inbox.Entry{Handler: "h", DedupKey: "k"}); seen || err != nil {
		t.Errorf("Contains after the units of work = %t, %v", seen, err)
	}
}
