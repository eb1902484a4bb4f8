package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/middleware"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

// StoryOptions configures a story.
type StoryOptions struct {
	// Relay is the command line of a relay process, and Dashboard that of a dashboard, to
	// which the path of a configuration file is appended.
	Relay, Dashboard []string
	// Stdout receives the address of the dashboard, Stderr the events of the story.
	Stdout, Stderr io.Writer
}

// The story: a payment gateway refuses some orders for outage, and then works again. One relay
// is killed every killAfter. An order is placed every orderEvery.
const (
	outage     = 20 * time.Second
	killAfter  = 7 * time.Second
	orderEvery = 50 * time.Millisecond
)

// The messages that fail: a share of the payments during the outage, and a share of the mails
// until an operator retries them.
const (
	paymentsRefused = 0.10
	mailsBroken     = 0.02
)

// A story is a service on a SQLite file, with another one as its broker, for people to look at.
type story struct {
	opt     StoryOptions
	db      *waysqlite.DB
	broker  *waysqlite.DB
	out     *outbox.Outbox[*sql.Tx]
	history *history.Recorder
	begun   time.Time
	broken  sync.Map // orders whose mail has failed
}

// Story runs a service with a dashboard until ctx ends: orders, relay processes that are killed
// with kill -9, a group of failures that is retried when its cause is gone, and one that is left
// to the reader.
func Story(ctx context.Context, opt StoryOptions) (err error) {
	dir, err := os.MkdirTemp("", "waybill-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := openFile(ctx, filepath.Join(dir, "shop.db"), dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	broker, err := openFile(ctx, filepath.Join(dir, "broker.db"), dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	s := &story{opt: opt, db: db, broker: broker, begun: time.Now()}
	if s.history, err = history.New(db, history.Config{}); err != nil {
		return err
	}
	if s.out, err = outbox.New(db, outbox.Config{To: "orders", Observer: s.history}); err != nil {
		return err
	}
	config := filepath.Join(dir, "waybill.yaml")
	yaml := fmt.Sprintf("database: %q\ntransports: { orders: { dsn: \"queue://orders?database=%s\" } }\noutbox: { to: orders }\nmessages: { order.placed: {}, order.paid: {} }\n", fileDSN(db), url.QueryEscape(fileDSN(broker)))
	if err := os.WriteFile(config, []byte(yaml), 0o600); err != nil {
		return err
	}
	return s.run(ctx, &deployment{dir: dir, config: config})
}

// run runs the processes and loops of the story until ctx ends or one of them fails.
func (s *story) run(ctx context.Context, site *deployment) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	fleet := newFleet(Options{Relay: s.opt.Relay}, site, &Figures{})
	defer func() { fleet.stop() }()
	if err := fleet.start(); err != nil {
		return err
	}
	pages := newFleet(Options{Relay: s.opt.Dashboard}, site, &Figures{})
	defer func() { pages.stop() }()
	pages.stdout = s.opt.Stdout
	if err := pages.open("dashboard.log"); err != nil {
		return err
	}
	if err := pages.launch(); err != nil {
		return err
	}
	s.say("orders are placed, relays killed with kill -9, and the payment gateway refuses some: open the page; Ctrl-C ends it")
	loops := []func(context.Context) error{
		s.place, s.work, s.history.Run, s.mend,
		func(ctx context.Context) error { return s.kill(ctx, fleet) },
		func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return nil
			case <-pages.ships[0].done:
				return pages.endedByItself()
			}
		},
	}
	ended := make(chan error, len(loops))
	for _, run := range loops {
		go func() { ended <- run(ctx) }()
	}
	for range loops {
		one := <-ended
		if one != nil && ctx.Err() == nil {
			stop() // the first failure ends the others
			err = one
		}
	}
	return err
}

func (s *story) say(format string, args ...any) {
	fmt.Fprintf(s.opt.Stderr, "%4.0fs %s\n", time.Since(s.begun).Seconds(), fmt.Sprintf(format, args...))
}

// place places orders.
func (s *story) place(ctx context.Context) error {
	for n := 0; ctx.Err() == nil; n++ {
		msg := orderPlaced{Order: n, Step: 1, Cents: 100 + rand.IntN(99_900)}
		err := s.out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*sql.Tx]) error {
			_, err := tx.Dispatch(ctx, msg)
			return err
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
		pause(ctx, orderEvery)
	}
	return nil
}

var (
	errGatewayRefuses = errors.New("payment gateway: 503 Service Unavailable")
	errTemplate       = errors.New("mail template order.html: no field Street in Address")
)

// work handles the messages: a paid order is a message that follows.
func (s *story) work(ctx context.Context) error {
	bus := waybill.NewBus("shop", middleware.Recover())
	inbox.Handle(bus, s.db, "payment", func(ctx context.Context, tx *sql.Tx, m orderPlaced) error {
		if time.Since(s.begun) < outage && share(m.Order, 1) < paymentsRefused {
			return errGatewayRefuses
		}
		pause(ctx, time.Duration(rand.IntN(20))*time.Millisecond)
		_, err := s.out.Dispatch(ctx, tx, orderPaid{m.Order, 2, m.Cents})
		return err
	})
	inbox.Handle(bus, s.db, "mail", func(_ context.Context, _ *sql.Tx, m orderPaid) error {
		if share(m.Order, 2) < mailsBroken {
			if _, retried := s.broken.LoadOrStore(m.Order, true); !retried {
				return waybill.Unrecoverable(errTemplate)
			}
		}
		return nil
	})
	queue, err := s.broker.Queue("orders", waysqlite.QueueConfig{})
	if err != nil {
		return err
	}
	process, err := worker.NewProcess(s.db, "shop-1", nil)
	if err != nil {
		return err
	}
	w, err := worker.New(bus, queue, worker.Config{
		Transport: "orders", Concurrency: 8, Store: s.db, Inbox: s.db, OnExhausted: worker.Skip, Process: process, Observer: s.history,
		MaxRetries: 2, Retry: waybill.Backoff{Delay: time.Second, MaxDelay: 2 * time.Second},
	})
	if err != nil {
		return err
	}
	ctx, end := process.Context(ctx)
	defer end()
	if err = w.Run(ctx); errors.Is(context.Cause(ctx), worker.ErrStopRequested) {
		return errors.New("an operator has stopped the worker on the page Workers")
	}
	return err
}

// share is a number from 0 to 1 that an order has for a purpose.
func share(order, purpose int) float64 {
	return rand.New(rand.NewPCG(uint64(order), uint64(purpose))).Float64()
}

// kill kills the relay at work from time to time.
func (s *story) kill(ctx context.Context, f *fleet) error {
	for {
		if pause(ctx, killAfter); ctx.Err() != nil {
			return nil
		}
		relay := f.ships[0]
		select {
		case <-relay.done:
			return f.endedByItself()
		default:
		}
		if err := relay.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		<-relay.done
		f.ships = f.ships[1:]
		if pause(ctx, takeover); ctx.Err() != nil {
			return nil
		}
		if err := f.launch(); err != nil {
			return err
		}
	}
}

// mend retries the refused payments when the gateway works again.
func (s *story) mend(ctx context.Context) error {
	// The last payments that were refused become dead letters some seconds later.
	if pause(ctx, outage+6*time.Second); ctx.Err() != nil {
		return nil
	}
	letters, err := s.db.Failed(ctx, admin.FailedQuery{State: admin.Failed, Handler: "payment"})
	if err != nil || len(letters) == 0 {
		return err
	}
	numbers := make([]int64, len(letters))
	for i, m := range letters {
		numbers[i] = m.Number
	}
	n, err := s.db.RetryFailed(admin.WithAction(ctx, admin.Action{Actor: "demo"}), numbers...)
	if err == nil {
		s.say("the gateway works again, and its %d dead letters are retried; those of the mail template are yours: Failures, the group, Retry", n)
	}
	return err
}
