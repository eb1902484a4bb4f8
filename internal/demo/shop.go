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
	"github.com/waybill-go/waybill/waysqlite"
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
)

// shop is the order service.
type shop struct {
	opt     Options
	site    *site
	figures *Figures
}

func newShop(opt Options, site *site, figures *Figures) *shop { return &shop{opt, site, figures} }

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
		order := open[i]
		at[order]++
		if err := s.step(ctx, dice, order, at[order]); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("order %d, step %d: %w", order, at[order], err)
		}
		if at[order] == steps {
			open = append(open[:i], open[i+1:]...)
			delete(at, order)
		}
	}
}

var errChangedMind = errors.New("the customer changed their mind")

// step commits one step of an order, sometimes after a try that is rolled back.
func (s *shop) step(ctx context.Context, dice *rand.Rand, order, step int) error {
	cents := 100 + dice.IntN(99_900)
	var msg any
	switch step {
	case 1:
		msg = orderPlaced{order, step, cents}
	case 2:
		msg = orderPaid{order, step, cents}
	default:
		msg = orderShipped{order, step}
	}
	fail := dice.Float64() < rollbackShare
	for {
		err := s.site.outbox.InTx(ctx, func(ctx context.Context, tx waysqlite.Tx) error {
			id, err := waybill.NewMessageID()
			if err != nil {
				return err
			}
			if _, err := tx.SQL().ExecContext(ctx, "INSERT INTO demo_steps (order_id, step, message_id) VALUES (?, ?, ?)", order, step, id); err != nil {
				return err
			}
			if _, err := tx.Dispatch(ctx, msg, id); err != nil {
				return err
			}
			if fail {
				return errChangedMind
			}
			return nil
		})
		switch {
		case errors.Is(err, errChangedMind):
			fail = false
			s.figures.rolledBack.Add(1)
		case err != nil:
			return err
		default:
			s.figures.committed.Add(1)
			return nil
		}
	}
}
