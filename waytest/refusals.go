package waytest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
	"github.com/waybill-go/waybill/outbox"
)

// Two units that cannot commit together are refused, in either order, also from a handler
// that belongs to a group.
func unitInsideOneOfAnotherDatabaseIsRefused[TX any](t *testing.T, s *fixture[TX]) {
	out, other := s.outbox(outbox.Config{}), memory.NewDB()
	foreign := func(ctx context.Context) error {
		return other.InTx(ctx, func(context.Context, *memory.Tx) error { return nil })
	}
	err := out.InTx(t.Context(), func(ctx context.Context, _ outbox.Tx[TX]) error { return foreign(ctx) })
	if !errors.Is(err, waybill.ErrForeignTransaction) {
		t.Errorf("InTx of another database in InTx = %v, want ErrForeignTransaction", err)
	}
	err = other.InTx(t.Context(), func(ctx context.Context, _ *memory.Tx) error { return send(ctx, out, order{"k", 1}) })
	if !errors.Is(err, waybill.ErrForeignTransaction) {
		t.Errorf("InTx in one of another database = %v, want ErrForeignTransaction", err)
	}
	if in, ok := any(s.Store).(inbox.Store[TX]); ok {
		var failed error
		err := in.InTx(t.Context(), func(ctx context.Context, tx TX) (lost error) {
			_, failed, lost = in.RunInSavepoint(t.Context(), tx, inbox.Entry{Handler: "h", DedupKey: "d"}, foreign)
			return lost
		})
		if err != nil || !errors.Is(failed, waybill.ErrForeignTransaction) {
			t.Errorf("InTx of another database in a savepoint of a group = %v, %v, want ErrForeignTransaction", failed, err)
		}
	}
	s.wantWaiting("afterwards")
}

// SeparateTransaction allows another database, and never the same one.
func separateUnitCommitsByItself[TX any](t *testing.T, s *fixture[TX]) {
	out, other := s.outbox(outbox.Config{}), memory.NewDB()
	err := other.InTx(t.Context(), func(ctx context.Context, _ *memory.Tx) error {
		ctx = waybill.SeparateTransaction(ctx)
		if err := send(ctx, out, order{"k", 1}); err != nil {
			t.Errorf("a separate unit: %v", err)
		}
		err := out.InTx(ctx, func(ctx context.Context, _ outbox.Tx[TX]) error {
			if err := send(waybill.SeparateTransaction(ctx), out, order{"k", 2}); !errors.Is(err, waybill.ErrNestedTransaction) {
				t.Errorf("the same database in a separate unit = %v, want ErrNestedTransaction", err)
			}
			return other.InTx(waybill.SeparateTransaction(ctx), func(context.Context, *memory.Tx) error { return nil })
		})
		if !errors.Is(err, waybill.ErrNestedTransaction) {
			t.Errorf("the outermost database again = %v, want ErrNestedTransaction", err)
		}
		return errChangedMind
	})
	if !errors.Is(err, errChangedMind) {
		t.Error(err)
	}
	s.wantWaiting("after the outer one was rolled back", order{"k", 1})
	if err := send(waybill.SeparateTransaction(t.Context()), out, order{"k", 3}); err != nil {
		t.Errorf("SeparateTransaction outside of any unit: %v", err)
	}
}

func nilTransactionIsRefused[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	var none TX
	calls := map[string]func(ctx context.Context) error{
		"Dispatch": func(ctx context.Context) error {
			_, err := out.Dispatch(ctx, none, order{"k", 1})
			return err
		},
		"Savepoint": func(ctx context.Context) error {
			return out.Savepoint(ctx, none, func(context.Context) error { return nil })
		},
	}
	if in, ok := any(s.Store).(inbox.Store[TX]); ok {
		e := inbox.Entry{Handler: "h", DedupKey: "d"}
		calls["InsertTx"] = func(ctx context.Context) error {
			_, err := in.InsertTx(ctx, none, e)
			return err
		}
		calls["RunInSavepoint"] = func(ctx context.Context) error {
			_, _, err := in.RunInSavepoint(ctx, none, e, func(context.Context) error { return nil })
			return err
		}
	}
	for name, call := range calls {
		if err := call(t.Context()); err == nil || !strings.Contains(err.Error(), "the transaction is nil: pass the one of InTx") {
			t.Errorf("%s with a nil transaction = %v, want what to pass", name, err)
		}
	}
	s.wantWaiting("afterwards")
}
