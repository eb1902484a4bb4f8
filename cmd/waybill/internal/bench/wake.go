package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// committers is how many commit at once in commits.
const committers = 64

// waking is the outbox of a backend as separate processes open it.
type waking struct {
	hears       *waypg.DB   // hears of commits in other processes; nil where none does
	loud, quiet transaction // of processes that announce their commits, and that do not
	close       func() error
}

func (p *postgres) waking(ctx context.Context) (w waking, err error) {
	var dbs []*waypg.DB
	var pools []*pgxpool.Pool
	w.close = func() error {
		var errs []error
		for _, db := range dbs {
			errs = append(errs, db.Close())
		}
		for _, pool := range pools {
			pool.Close()
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.hears, err = waypg.Open(ctx, p.conn, waypg.Config{Schema: p.schema, Notify: true}); err != nil {
		return w, err
	}
	dbs = append(dbs, w.hears)
	cfg, err := pgxpool.ParseConfig(p.conn)
	if err != nil {
		return w, err
	}
	cfg.MaxConns = committers
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return w, err
	}
	pools = append(pools, pool)
	for one, notify := range map[*transaction]bool{&w.loud: true, &w.quiet: false} {
		process := *p
		if process.db, err = waypg.New(pool, waypg.Config{Schema: p.schema, Notify: notify}); err != nil {
			return w, err
		}
		dbs = append(dbs, process.db)
		if process.out, err = outbox.New(process.db, outbox.Config{}); err != nil {
			return w, err
		}
		// The yardstick remains that of p, on the pool of p.
		*one = transaction{name: "InTx", waybill: process.inTx, plain: p.plainOneTrip}
	}
	return w, nil
}

// commits measures transactions with a message under many writers, from begin to
// commit: with commits announced to a listener, against commits not announced.
func commits(ctx context.Context, opt Options, p backend, w waking) (Result, error) {
	release, err := w.hears.StartRelay(ctx)
	if err != nil {
		return Result{}, err
	}
	defer release()
	w.hears.Wake(outbox.DefaultTransport, outbox.Keyed)
	res := Result{Case: fmt.Sprintf("commit of %d writers, announced against not", committers), Database: p.database(), Keys: opt.Keys, Workers: committers, Rounds: opt.Rounds}
	side := func(one transaction) func(ctx context.Context) (quantiles, error) {
		return func(ctx context.Context) (quantiles, error) {
			if err := p.clear(ctx); err != nil {
				return quantiles{}, err
			}
			return hammer(ctx, opt, one)
		}
	}
	return compare(ctx, opt, res, side(w.loud), side(w.quiet))
}

// hammer has all writers commit for the time of a slice.
func hammer(ctx context.Context, opt Options, one transaction) (quantiles, error) {
	took, errs := make([][]float64, committers), make([]error, committers)
	var all sync.WaitGroup
	end := time.Now().Add(opt.Slice)
	for i := range committers {
		all.Go(func() {
			for n := i; time.Now().Before(end) && errs[i] == nil; n += committers {
				start := time.Now()
				errs[i] = one.waybill(ctx, []sold{{keyOf(n, opt.Keys), n, note}})
				took[i] = append(took[i], time.Since(start).Seconds()*1000)
			}
		})
	}
	all.Wait()
	var together []float64
	for _, t := range took {
		together = append(together, t...)
	}
	return quantilesOf(together), errors.Join(errs...)
}
