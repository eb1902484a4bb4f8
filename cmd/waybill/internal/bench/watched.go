package bench

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

const (
	watchedCase  = "watched"
	watchers     = 10          // clients that refresh a page
	watchedPace  = time.Second // between two refreshes of one client; a page that refreshes by itself has 10 s
	watchedRatio = 0.97
)

// watchedPages are opened in turn.
var watchedPages = []string{"/", "/outbox", "/failed", "/workers"}

// watched measures a relay while clients refresh pages of the dashboard in the same process,
// against the same relay without them.
func watched(ctx context.Context, p backend, broker *broker, opt Options) (_ Result, err error) {
	db, ok := p.store().(dashboard.Database)
	if !ok {
		return Result{}, errors.New("the dashboard cannot show this database")
	}
	pages, err := dashboard.New(dashboard.Config{Database: db})
	if err != nil {
		return Result{}, err
	}
	server := httptest.NewServer(pages)
	pub, err := wayamqp.NewPublisher(wayamqp.Config{URL: opt.Broker, Exchange: broker.name})
	if err != nil {
		return Result{}, err
	}
	defer func() {
		server.Close()
		err = errors.Join(err, pages.Close(), pub.Close())
	}()
	r := relaying{relayCase{name: watchedCase, keys: 1000}, p, broker, opt}
	relay, err := outbox.NewRelay(p.store(), pub, outbox.RelayConfig{Drain: true, Workers: opt.Workers, Batch: opt.Batch, Window: opt.Window})
	if err != nil {
		return Result{}, err
	}
	var opened, refused atomic.Int64
	side := func(url string) side {
		return func(ctx context.Context) (int, time.Duration, error) {
			if err := errors.Join(r.prepare(ctx, outboxTable), pub.Connect(ctx)); err != nil {
				return 0, 0, err
			}
			return r.timed(ctx, true, func() error {
				return whileRefreshed(ctx, url, &opened, &refused, func() error { return relay.Run(ctx) })
			})
		}
	}
	res := Result{Case: "relay, " + watchedCase, Database: p.database(), Keys: r.keys, Workers: opt.Workers, Ordering: "strict", Target: watchedRatio, Buckets: opt.buckets(), Batch: opt.Batch, Window: opt.Window, Rows: opt.Rows}
	res, err = race(ctx, opt, res, side(server.URL), side(""))
	opt.say("%s: %d pages of the dashboard were opened, %d refused because it was busy", res.Case, opened.Load(), refused.Load())
	if err == nil && opened.Load() == 0 {
		err = errors.New("no page was opened: more --rows make a longer round")
	}
	return res, err
}

// whileRefreshed runs fn while clients refresh pages below url, of which the empty one has none, and
// counts the pages.
func whileRefreshed(ctx context.Context, url string, opened, refused *atomic.Int64, fn func() error) error {
	if url == "" {
		return fn()
	}
	watching, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	errs := make(chan error, watchers)
	for i := range watchers {
		clients.Go(func() {
			next := time.Duration(i) * watchedPace / watchers
			for n := i; ; n++ {
				select {
				case <-watching.Done():
					return
				case <-time.After(next):
					next = watchedPace
				}
				status, err := open(watching, url+watchedPages[n%len(watchedPages)])
				switch {
				case watching.Err() != nil:
					return
				case err != nil:
					errs <- err
					return
				case status == http.StatusOK:
					opened.Add(1)
				default:
					refused.Add(1)
				}
			}
		})
	}
	err := fn()
	stop()
	clients.Wait()
	close(errs)
	return errors.Join(err, <-errs)
}

// open reads a page, and returns the status of the answer.
func open(ctx context.Context, url string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, errors.Join(err, res.Body.Close())
}
