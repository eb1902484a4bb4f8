package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
)

// The life of an order, one message each.
type (
	orderPlaced  struct{ Order, Step, Cents int }
	orderPaid    struct{ Order, Step, Cents int }
	orderShipped struct{ Order, Step int }
)

func (orderPlaced) MessageName() string    { return "order.placed" }
func (m orderPlaced) PartitionKey() string { return strconv.Itoa(m.Order) }

func (orderPaid) MessageName() string    { return "order.paid" }
func (m orderPaid) PartitionKey() string { return strconv.Itoa(m.Order) }

func (orderShipped) MessageName() string    { return "order.shipped" }
func (m orderShipped) PartitionKey() string { return strconv.Itoa(m.Order) }

const (
	steps         = 3
	clerks        = 8    // goroutines of the order service
	rollbackShare = 0.08 // of the transactions
	holdShare     = 0.15 // of the transactions, where others can run meanwhile
	holdMin       = 10 * time.Millisecond
	holdMax       = 80 * time.Millisecond
)

// shop is the order service.
type shop struct {
	opt     Options
	site    *deployment
	figures *Figures
}

func newShop(opt Options, site *deployment, figures *Figures) *shop { return &shop{opt, site, figures} }

// run takes all orders through their steps. It ends early with ctx.
func (s *shop) run(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, clerks)
	for clerk := range clerks {
		wg.Go(func() { errs[clerk] = s.work(ctx, clerk) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// work is one clerk: it has some orders open at a time and moves one of them a
// step on, paced so that the whole takes its minimum time.
func (s *shop) work(ctx context.Context, clerk int) error {
	dice := dice(s.opt, uint64(100+clerk))
	working := min(clerks, s.opt.Orders)
	pace := time.NewTicker(max(time.Microsecond, minimumFor*time.Duration(working)/time.Duration(s.opt.Orders*steps)))
	defer pace.Stop()
	next, open := clerk, []int{}
	at := map[int]int{}
	held := -1 // index in open
	for {
		for len(open) < 20 && next < s.opt.Orders {
			open = append(open, next)
			next += clerks
		}
		if len(open) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
		i := dice.IntN(len(open))
		if held >= 0 {
			i = held // the next step after a held transaction comes at once
		}
		order := open[i]
		at[order]++
		wasHeld, err := s.step(ctx, dice, order, at[order])
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("order %d, step %d: %w", order, at[order], err)
		}
		if held = -1; wasHeld && at[order] < steps {
			held = i
		}
		if at[order] == steps {
			open = append(open[:i], open[i+1:]...)
			delete(at, order)
		}
	}
}

var errChangedMind = errors.New("the customer changed their mind")

// step commits one step of an order, sometimes after a try that is rolled back,
// and reports whether the transaction was held open.
func (s *shop) step(ctx context.Context, dice *rand.Rand, order, at int) (held bool, err error) {
	cents := 100 + dice.IntN(99_900)
	var msg any
	switch at {
	case 1:
		msg = orderPlaced{order, at, cents}
	case 2:
		msg = orderPaid{order, at, cents}
	default:
		msg = orderShipped{order, at}
	}
	var refuse error
	if dice.Float64() < rollbackShare {
		refuse = errChangedMind
	}
	var hold time.Duration
	if s.site.orders.holds() && dice.Float64() < holdShare {
		hold = holdMin + time.Duration(dice.Int64N(int64(holdMax-holdMin)))
	}
	for {
		id, err := waybill.NewMessageID()
		if err != nil {
			return false, err
		}
		err = s.site.orders.place(ctx, step{order, at, id}, msg, hold, refuse)
		switch {
		case errors.Is(err, errChangedMind):
			refuse = nil
			s.figures.rolledBack.Add(1)
		case err != nil:
			return false, err
		default:
			s.figures.committed.Add(1)
			return hold > 0, nil
		}
	}
}
