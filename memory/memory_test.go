package memory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDeclined = errors.New("declined")

// record returns a record with any key and body.
func record(t testing.TB, key, body string) *waybill.Record {
	t.Helper()
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	return &waybill.Record{ID: id, Name: "step", Key: key, Body: []byte(body), DispatchedAt: time.Now()}
}

func row(t testing.TB, key, body string) outbox.Row {
	t.Helper()
	return outbox.Row{Record: record(t, key, body), Transport: "events"}
}

func delayedRow(t testing.TB, key, body string, delay time.Duration) outbox.Row {
	t.Helper()
	r := row(t, key, body)
	r.Record.Delay = delay
	return r
}

// newDB returns a database with the transport events.
func newDB(t testing.TB) *memory.DB {
	t.Helper()
	db := memory.NewDB()
	if err := db.AddTransports(t.Context(), "events"); err != nil {
		t.Fatal(err)
	}
	return db
}

// commit writes rows in one unit of work.
func commit(t testing.TB, db *memory.DB, rows ...outbox.Row) {
	t.Helper()
	err := db.InTx(t.Context(), func(ctx context.Context, tx *memory.Tx) error { return db.Write(ctx, tx, rows...) })
	if err != nil {
		t.Fatal(err)
	}
}

func bodies(recs []*waybill.Record) string {
	var all string
	for _, rec := range recs {
		all += string(rec.Body) + " "
	}
	return all
}

func wantPending(t testing.TB, db *memory.DB, want string) {
	t.Helper()
	if got := bodies(db.Pending("events")); got != want {
		t.Errorf("pending = %q, want %q", got, want)
	}
}

func TestTransactionsThatCannotWorkAreRefused(t *testing.T) {
	db, other := newDB(t), newDB(t)
	var kept *memory.Tx
	err := db.InTx(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
		kept = tx
		nested := db.InTx(ctx, func(context.Context, *memory.Tx) error { return nil })
		if !errors.Is(nested, waybill.ErrNestedTransaction) {
			t.Errorf("InTx in InTx = %v, want %v", nested, waybill.ErrNestedTransaction)
		}
		if err := other.InTx(ctx, func(context.Context, *memory.Tx) error { return nil }); !errors.Is(err, waybill.ErrForeignTransaction) {
			t.Errorf("InTx of another database = %v, want %v", err, waybill.ErrForeignTransaction)
		}
		if tx.Commit() == nil || tx.Rollback() == nil {
			t.Error("Commit or Rollback of a unit of work = nil, want errors: InTx does that")
		}
		if err := other.Write(ctx, tx, row(t, "a", "a1")); err == nil {
			t.Error("Write with a transaction of another database = nil, want an error")
		}
		if err := db.Write(ctx, tx, row(t, "a", "a1"), outbox.Row{Record: record(t, "", ""), Transport: "nowhere"}); err == nil {
			t.Error("Write to an unknown transport = nil, want an error")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), kept, row(t, "a", "a1")); err == nil {
		t.Error("Write after the end of the transaction = nil, want an error")
	}
	wantPending(t, db, "")
	defer func() {
		if got := fmt.Sprint(recover()); got != "memory: the transaction has ended" {
			t.Errorf("OnCommit after the end of the transaction: panic %q, want one that says so", got)
		}
	}()
	kept.OnCommit(func() {})
}

func TestTransactionsWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDB(t)
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := db.Begin(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Begin beside an open transaction = %v, want %v", err, context.DeadlineExceeded)
		}
		if err := errors.Join(db.Write(t.Context(), tx, row(t, "a", "a1")), tx.Commit(), tx.Rollback()); err != nil {
			t.Fatal(err)
		}
		wantPending(t, db, "a1 ")
	})
}

func TestStoredRecordsAreTheDatabasesOwn(t *testing.T) {
	db := newDB(t)
	r := row(t, "a", "a1")
	commit(t, db, r)
	r.Record.Body[0] = 'X'
	db.Pending("events")[0].Body[0] = 'Y'
	wantPending(t, db, "a1 ")
}

func claimRows(t testing.TB, db *memory.DB, max outbox.ClaimLimit) (outbox.Claim, string) {
	t.Helper()
	claim, err := db.Claim(t.Context(), "events", outbox.Keyed, max)
	if err != nil {
		t.Fatal(err)
	}
	var recs []*waybill.Record
	for _, row := range claim.Rows() {
		recs = append(recs, row.Record)
	}
	return claim, bodies(recs)
}

var anyNumber = outbox.ClaimLimit{Rows: 100, Bytes: 1 << 20}

func settle(t testing.TB, claim outbox.Claim, published []outbox.ClaimedRow, failed ...outbox.Failure) {
	t.Helper()
	if err := claim.Settle(t.Context(), published, failed); err != nil {
		t.Fatal(err)
	}
}

func TestDelayedRowIsOrderedFromItsDueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDB(t)
		commit(t, db, delayedRow(t, "a", "late", time.Hour), delayedRow(t, "a", "soon", time.Minute), delayedRow(t, "a", "soon2", time.Minute), row(t, "a", "now"))
		wantPending(t, db, "now soon soon2 late ")
		claim, got := claimRows(t, db, anyNumber)
		if got != "now " {
			t.Errorf("claim before anything is due = %q, want now", got)
		}
		settle(t, claim, claim.Rows())
		time.Sleep(time.Minute)
		commit(t, db, row(t, "a", "then"))
		claim, got = claimRows(t, db, anyNumber)
		if got != "then soon soon2 " && got != "soon soon2 then " {
			t.Errorf("claim after a minute = %q, want soon before soon2, and then", got)
		}
		if d := claim.Rows()[0].Record.Delay; d != 0 {
			t.Errorf("a row that is due has a delay of %v, want none", d)
		}
		if left, _ := db.Backlog(t.Context(), "events"); left != (outbox.Backlog{Pending: 3, Delayed: 1}) {
			t.Errorf("Backlog = %+v, want 3 pending and 1 delayed", left)
		}
	})
}

func TestCommitHintsAtItsRows(t *testing.T) {
	db := newDB(t)
	wake := db.Wake("events", outbox.Keyed)
	commit(t, db, row(t, "a", "a1"), row(t, "a", "a2"))
	select {
	case <-wake:
	default:
		t.Error("no hint after a commit with rows")
	}
	commit(t, db)
	select {
	case <-wake:
		t.Error("a hint without rows")
	default:
	}
}

func TestSyncHandlesAtOnce(t *testing.T) {
	bus := waybill.NewBus("main")
	handled := 0
	waybill.Handle(bus, "count", func(_ context.Context, m OrderPlaced) error {
		handled++
		if m.Cents < 0 {
			return errDeclined
		}
		return nil
	})
	bus.AddSender("now", memory.Sync(bus))
	bus.Route("*", "now")
	if _, err := bus.Dispatch(t.Context(), OrderPlaced{"o-1", 1}); err != nil || handled != 1 {
		t.Errorf("Dispatch = %v after %d calls, want nil after 1", err, handled)
	}
	if _, err := bus.Dispatch(t.Context(), OrderPlaced{"o-1", -1}); !errors.Is(err, errDeclined) {
		t.Errorf("Dispatch = %v, want the handler's error", err)
	}
	if _, err := bus.Dispatch(t.Context(), OrderPlaced{"o-1", 1}, waybill.Delay(time.Second)); err == nil || handled != 2 {
		t.Errorf("delayed Dispatch = %v after %d calls, want an error and no third call", err, handled)
	}
}

func TestSyncWithoutABusPanics(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); got != "memory: Sync needs a bus" {
			t.Errorf("panic %q, want one that asks for a bus", got)
		}
	}()
	memory.Sync(nil)
}

// A worker counts and names the handlers of the message that it has received, and no others.
func TestSyncIsNotWatchedAsTheHandlerAround(t *testing.T) {
	var begun, ended []string
	ctx := waybill.WithHandlerWatch(t.Context(), waybill.HandlerWatch{
		Begins: func(handler string, _ int) { begun = append(begun, handler) },
		Ended:  func(run waybill.HandlerRun) { ended = append(ended, run.Handler) },
	})
	inner, outer := waybill.NewBus("inner"), waybill.NewBus("outer")
	handled := 0
	waybill.Handle(inner, "count", func(context.Context, OrderPlaced) error { handled++; return nil })
	outer.AddSender("now", memory.Sync(inner))
	outer.Route("*", "now")
	waybill.HandleRaw(outer, "around", "step", func(ctx context.Context, _ waybill.RawMessage) error {
		_, err := outer.Dispatch(ctx, OrderPlaced{"o-1", 1})
		return err
	})
	if err := outer.HandleRecord(ctx, record(t, "", "{}"), "events", 0); err != nil || handled != 1 {
		t.Fatalf("HandleRecord = %v after %d calls, want nil after 1", err, handled)
	}
	if want := []string{"around"}; !slices.Equal(begun, want) || !slices.Equal(ended, want) {
		t.Errorf("handlers %q have begun and %q ended, want %q", begun, ended, want)
	}
}
