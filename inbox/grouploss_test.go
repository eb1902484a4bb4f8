package inbox_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
)

// receiveAll handles records at once and returns their errors.
func (p *fixture) receiveAll(recs ...*waybill.Record) []error {
	errs := make([]error, len(recs))
	var all sync.WaitGroup
	for i, rec := range recs {
		all.Go(func() { errs[i] = p.receive(rec) })
	}
	all.Wait()
	return errs
}

func TestGroupOutlivesTheContextOfAMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		runs := 0
		inbox.Handle(p.bus, p.db, "billing", func(_ context.Context, tx *memory.Tx, m paid) error {
			tx.OnCommit(func() { p.effects = append(p.effects, m.Invoice) })
			if m.Invoice == "i-2" {
				runs++
				cancel()
				synctest.Wait()
			}
			return nil
		}, inbox.Group(2))
		first := p.record("i-1")
		go func() { _ = p.bus.HandleRecord(ctx, first, "in", 0) }()
		synctest.Wait() // it leads the group
		if err := p.receive(p.record("i-2")); err != nil || runs != 1 {
			t.Errorf("error %v after %d runs, want none after one: the other member's context is not the group's", err, runs)
		}
	})
}

// A tearing database commits a group at its second savepoint, as DDL in a handler of
// MySQL does, and reports the transaction lost.
type tearing struct {
	*memory.DB
	savepoints int
	lost       error
}

func (d *tearing) RunInSavepoint(ctx context.Context, tx *memory.Tx, e inbox.Entry, fn func(context.Context) error) (bool, error, error) {
	if d.savepoints++; d.savepoints == 2 {
		d.lost = waybill.ErrTransactionLost
		return false, errDeclined, d.lost
	}
	return d.DB.RunInSavepoint(ctx, tx, e, fn)
}

func (d *tearing) InTx(ctx context.Context, fn func(context.Context, *memory.Tx) error) error {
	var lost error
	err := d.DB.InTx(ctx, func(ctx context.Context, tx *memory.Tx) error {
		err := fn(ctx, tx)
		if err != nil && err == d.lost {
			lost, err = err, nil
		}
		return err
	})
	return errors.Join(err, lost)
}

func TestMemberWhoseDispatchesWereLostSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		inbox.Handle(p.bus, &tearing{DB: p.db}, "billing", fine, inbox.Group(2))
		torn, declined := 0, 0
		for _, err := range p.receiveAll(p.record("i-1"), p.record("i-2")) {
			switch {
			case errors.Is(err, errDeclined):
				declined++
			case err != nil && waybill.IsUnrecoverable(err) && strings.Contains(err.Error(), "what it dispatched was not sent"):
				torn++
			default:
				t.Errorf("unexpected: %v", err)
			}
		}
		if torn != 1 || declined != 1 {
			t.Errorf("%d torn and %d declined, want one each", torn, declined)
		}
	})
}

// lostAlways loses each transaction, and counts them.
type lostAlways struct {
	*memory.DB
	begun int
}

func (l *lostAlways) InTx(ctx context.Context, fn func(context.Context, *memory.Tx) error) error {
	l.begun++
	return errors.Join(l.DB.InTx(context.WithoutCancel(ctx), fn), waybill.ErrTransactionLost)
}

func TestLostTransactionIsNotTriedAgainAfterTheEnd(t *testing.T) {
	p := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	db := &lostAlways{DB: p.db}
	inbox.Handle(p.bus, db, "billing", func(context.Context, *memory.Tx, paid) error {
		cancel()
		return nil
	})
	if err := p.bus.HandleRecord(ctx, p.record("i-1"), "in", 0); !errors.Is(err, waybill.ErrTransactionLost) || db.begun != 1 {
		t.Errorf("error %v after %d transactions, want ErrTransactionLost after one", err, db.begun)
	}
}

// Were both members of one group, the second would be settled as a duplicate of an
// effect that is lost with the group.
func TestTwoDeliveriesOfAMessageShareNoGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		runs := 0
		inbox.Handle(p.bus, &losing{p.db, 1}, "billing", func(_ context.Context, tx *memory.Tx, m paid) error {
			tx.OnCommit(func() { p.effects = append(p.effects, m.Invoice) })
			if runs++; runs == 2 {
				return errDeclined
			}
			return nil
		}, inbox.Group(2))
		rec := p.record("i-1")
		first := make(chan error, 1)
		go func() { first <- p.receive(rec) }()
		synctest.Wait()
		if err := p.receive(rec); err == nil && len(p.effects) == 0 {
			t.Error("a delivery was acknowledged without an effect")
		}
		<-first
	})
}

// The member would wait for a group that waits for the member's transaction.
func TestMessageInsideATransactionJoinsNoGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		inbox.Handle(p.bus, p.db, "billing", fine, inbox.Group(2), inbox.Option{Linger: time.Minute})
		other := make(chan error, 1)
		go func() { other <- p.receive(p.record("i-1")) }()
		synctest.Wait() // it waits for another member
		err := p.db.InTx(t.Context(), func(ctx context.Context, _ *memory.Tx) error {
			return p.bus.HandleRecord(ctx, p.record("i-2"), "in", 0)
		})
		if !errors.Is(err, waybill.ErrNestedTransaction) {
			t.Errorf("error %v, want ErrNestedTransaction", err)
		}
		if err := <-other; err != nil {
			t.Error(err)
		}
	})
}
