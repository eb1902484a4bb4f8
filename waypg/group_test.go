package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// A violation that only COMMIT finds is the failure of the one message that caused
// it.
func TestGroupFindsWhoseFailureItsCommitIs(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		exec(t, db, "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (p int REFERENCES p DEFERRABLE INITIALLY DEFERRED); INSERT INTO p VALUES (0), (1), (3)")
		out := newOutbox(t, db, outbox.Config{})
		for round, dispatches := range []bool{false, true} {
			errs := inGroup(t, db, 4, func(ctx context.Context, tx pgx.Tx, m order) error {
				if _, err := tx.Exec(ctx, "INSERT INTO c VALUES ($1)", m.Seq); err != nil || !dispatches {
					return err
				}
				_, err := out.Dispatch(ctx, tx, m)
				return err
			})
			for i, err := range errs {
				if (err != nil) != (i == 2) || errors.Is(err, waybill.ErrCommitUnknown) || errors.Is(err, waybill.ErrUnavailable) {
					t.Errorf("message %d = %v, want a foreign key error of 2 alone", i, err)
				}
			}
			if n := count(t, db, "SELECT count(*) FROM c"); n != 3*(round+1) {
				t.Errorf("%d effects, want %d", n, 3*(round+1))
			}
		}
		if got := pending(t, db, outbox.DefaultTransport); len(got) != 3 {
			t.Errorf("%v were dispatched, want three messages", got)
		}
	})
}

// Two groups that lock the same rows in opposite order: one is chosen as the
// victim, and its messages are handled one by one.
func TestDeadlockOfTwoGroupsIsNobodysFailure(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		exec(t, db, "CREATE TABLE stock (id int PRIMARY KEY, n int); INSERT INTO stock VALUES (0, 0), (1, 0)")
		var mu sync.Mutex
		first := map[int]int{} // per group: the message that ran first, and its row
		var holding sync.WaitGroup
		holding.Add(2)
		var all sync.WaitGroup
		for group := range 2 {
			all.Go(func() {
				for i, err := range inGroup(t, db, 2, func(ctx context.Context, tx pgx.Tx, m order) error {
					mu.Lock()
					_, second := first[group]
					row, runs := group, first[group]
					if second {
						row = 1 - group
					}
					first[group] = runs + 1
					mu.Unlock()
					if _, err := tx.Exec(ctx, "UPDATE stock SET n = n + 1 WHERE id = $1", row); err != nil {
						return err
					}
					if !second {
						holding.Done()
						holding.Wait()
					}
					return nil
				}) {
					if err != nil {
						t.Errorf("group %d, message %d = %v", group, i, err)
					}
				}
			})
		}
		all.Wait()
		if n := count(t, db, "SELECT sum(n) FROM stock"); n != 4 {
			t.Errorf("%d effects, want 4", n)
		}
		if runs := first[0] + first[1]; runs <= 4 {
			t.Errorf("handlers ran %d times: there was no deadlock", runs)
		}
	})
}

// inGroup handles n messages at once, with the numbers from 0.
func inGroup(t *testing.T, db *waypg.DB, n int, fn func(ctx context.Context, tx pgx.Tx, m order) error) []error {
	bus := waybill.NewBus("main")
	inbox.Handle(bus, db, "billing", fn, inbox.Group(n), inbox.Option{Linger: 10 * time.Second})
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		id, err := waybill.NewMessageID()
		if err != nil {
			t.Error(err)
			return nil
		}
		rec := &waybill.Record{ID: id, Name: "order.placed", Key: fmt.Sprint("k", i), Body: fmt.Appendf(nil, `{"key":"k%d","seq":%d}`, i, i), DispatchedAt: time.Now()}
		all.Go(func() { errs[i] = bus.HandleRecord(context.Background(), rec, "in", 0) })
	}
	all.Wait()
	return errs
}

// A statement that ends its session each time is a failure of its message: as an outage it
// would be tried for ever.
func TestStatementThatEndsItsSessionIsNoOutage(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		err := db.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			return err
		})
		if err == nil || errors.Is(err, waybill.ErrTransactionLost) || errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("InTx = %v, want the statement's error alone", err)
		}
	})
}
