package waysqlite_test

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// Where the application ends the transaction of its unit by itself, SQLite can
// refuse the later statements, too: each would commit on its own.
func TestNothingFollowsATransactionThatWasEnded(t *testing.T) {
	for name, end := range map[string]string{"ROLLBACK": "ROLLBACK", "COMMIT": "COMMIT"} {
		db := open(t, waysqlite.Config{})
		if _, err := db.SQL().Exec("CREATE TABLE effects (n INTEGER)"); err != nil {
			t.Fatal(err)
		}
		out := newOutbox(t, db, outbox.Config{})
		err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
			if _, err := tx.Dispatch(ctx, order{"k", 1}); err != nil {
				return err
			}
			_, _ = tx.SQL().ExecContext(ctx, end) // its error is ignored
			_, _ = tx.SQL().ExecContext(ctx, "INSERT INTO effects VALUES (1)")
			return nil
		})
		if err == nil || errors.Is(err, waybill.ErrCommitUnknown) {
			t.Errorf("%s: InTx = %v, want an error", name, err)
		}
		if n := count(t, db, "SELECT count(*) FROM waybill_outbox"); n != 0 {
			t.Errorf("%s: %d messages were dispatched", name, n)
		}
		if n := count(t, db, "SELECT count(*) FROM effects"); n != 0 {
			t.Errorf("%s: a statement after the end committed on its own", name)
		}
	}
}

func TestGoroutinesMayDispatchInOneTransaction(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				if _, err := tx.Dispatch(ctx, order{"k", i}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		return nil
	})
	if n := count(t, db, "SELECT count(*) FROM waybill_outbox"); err != nil || n != 50 {
		t.Errorf("%d of 50 messages, %v", n, err)
	}
}

func TestTransactionOfAnotherDatabaseIsRefused(t *testing.T) {
	a, b := open(t, waysqlite.Config{}), open(t, waysqlite.Config{})
	out, other := newOutbox(t, a, outbox.Config{To: "events"}), newOutbox(t, b, outbox.Config{To: "mail"})
	err := other.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		_, err := out.Dispatch(ctx, tx.SQL(), order{"k", 1})
		return err
	})
	if err == nil {
		t.Error("a unit of work of another database was accepted")
	}
	tx, err := b.SQL().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := out.Dispatch(t.Context(), tx, order{"k", 1}); err == nil {
		t.Error("a transaction of another database was accepted")
	}
}

func TestWaitForOnesOwnTransactionEnds(t *testing.T) {
	db := open(t, waysqlite.Config{BusyTimeout: 100 * time.Millisecond})
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(context.Context, waysqlite.Tx) error {
		return out.InTx(t.Context(), func(context.Context, waysqlite.Tx) error { return nil }) // the outer context
	})
	if !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("InTx in InTx with the outer context = %v, want an error that wraps ErrUnavailable", err)
	}
}

func TestBusyTimeoutOfMonthsIsNotZero(t *testing.T) {
	for timeout, want := range map[time.Duration]int64{time.Minute: 60_000, 1000 * time.Hour: math.MaxInt32} {
		db := open(t, waysqlite.Config{BusyTimeout: timeout})
		var got int64
		if err := db.SQL().QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&got); err != nil || got != want {
			t.Errorf("with %v SQLite waits for %d ms, %v, want %d", timeout, got, err, want)
		}
	}
}

func TestReadersMayBeginTransactions(t *testing.T) {
	db := open(t, waysqlite.Config{})
	tx, err := db.ReadSQL().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec("DELETE FROM waybill_outbox"); err == nil {
		t.Error("a reader may write")
	}
}

// What docs/schema.md tells other programs to do.
func TestDocumentedInsertIsRelayed(t *testing.T) {
	doc, err := os.ReadFile("../docs/schema.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(doc), "## Writing to the outbox from elsewhere")
	_, block, ok := strings.Cut(part, "```sql\n")
	block, _, end := strings.Cut(block, "```")
	if !ok || !end {
		t.Fatal("docs/schema.md has no block of SQL")
	}
	db := open(t, waysqlite.Config{})
	for range 2 {
		if _, err := db.SQL().Exec(block); err != nil {
			t.Fatal(err)
		}
	}
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{Transport: "events"})
	if len(sink.ids) != 2 {
		t.Errorf("%d messages arrived, want 2", len(sink.ids))
	}
	rows, err := db.Outbox(t.Context(), admin.OutboxQuery{})
	if err != nil || len(rows) != 0 {
		t.Errorf("left: %v, %v", rows, err)
	}
}
