package inbox_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
)

// A counting database counts its transactions.
type counting struct {
	*memory.DB
	begun atomic.Int64
}

func (c *counting) InTx(ctx context.Context, fn func(ctx context.Context, tx *memory.Tx) error) error {
	c.begun.Add(1)
	return c.DB.InTx(ctx, fn)
}

// together receives n messages at once and returns how long each took.
func (p *fixture) together(n int) (took []time.Duration) {
	took = make([]time.Duration, n)
	var all sync.WaitGroup
	for i := range n {
		rec := p.record(fmt.Sprint("i-", i))
		all.Go(func() {
			start := time.Now()
			if err := p.receive(rec); err != nil {
				p.t.Error(err)
			}
			took[i] = time.Since(start)
		})
	}
	all.Wait()
	return took
}

func TestGroupThatDoesNotFillWaitsForTheLinger(t *testing.T) {
	for _, c := range []struct {
		name         string
		messages     int
		opt          inbox.Option
		wait         time.Duration
		transactions int
	}{
		{"default linger", 2, inbox.Option{}, 2 * time.Millisecond, 1},
		{"own linger", 2, inbox.Option{Linger: time.Second}, time.Second, 1},
		{"one alone", 1, inbox.Option{Linger: time.Second}, time.Second, 1},
		{"full", 3, inbox.Option{Linger: time.Second}, 0, 1},
		{"two full ones", 6, inbox.Option{Linger: time.Second}, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFixture(t)
				db := &counting{DB: p.db}
				inbox.Handle(p.bus, db, "billing", fine, inbox.Group(3), c.opt)
				for _, took := range p.together(c.messages) {
					if took != c.wait {
						t.Errorf("a message took %v, want %v", took, c.wait)
					}
				}
				if int(db.begun.Load()) != c.transactions {
					t.Errorf("%d messages had %d transactions, want %d", c.messages, db.begun.Load(), c.transactions)
				}
			})
		})
	}
}

func TestLostGroupRunsOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		var mu sync.Mutex
		runs := 0
		inbox.Handle(p.bus, &losing{p.db, 1}, "billing", func(_ context.Context, tx *memory.Tx, m paid) error {
			tx.OnCommit(func() { p.effects = append(p.effects, m.Invoice) })
			mu.Lock()
			defer mu.Unlock()
			runs++
			return nil
		}, inbox.Group(3))
		p.together(3)
		if runs != 6 || len(p.effects) != 3 {
			t.Errorf("a group of 3 that was lost once: %d runs and effects %v, want 6 and 3", runs, p.effects)
		}
	})
}

func TestRegistrationRefusesWhatDoesNotFit(t *testing.T) {
	p := newFixture(t)
	for name, register := range map[string]func(){
		"a group of one":           func() { inbox.Group(1) },
		"more than fit":            func() { inbox.Group(61) },
		"a negative linger":        func() { inbox.Handle(p.bus, p.db, "a", fine, inbox.Group(2), inbox.Option{Linger: -1}) },
		"a linger without a group": func() { inbox.Handle(p.bus, p.db, "b", fine, inbox.Option{Linger: 1}) },
		"no database":              func() { inbox.Handle[*memory.Tx](p.bus, nil, "c", fine) },
		"a nil database":           func() { inbox.Handle(p.bus, (*memory.DB)(nil), "d", fine) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			register()
		}()
	}
}
