package wayamqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// A link is one connection of a Publisher, with a channel for each exchange.
// Nothing of it outlives the connection.
type link struct {
	wire    *wire
	log     *slog.Logger
	running *sync.WaitGroup
	over    chan struct{} // closed when the connection has ended
	opening chan struct{} // held while a channel is opened

	mu      sync.Mutex // guards what follows
	ended   bool
	outlets map[string]*outlet // the current one of each exchange
	alarm   *alarm             // nil while the broker accepts publishes
}

// An alarm is the time in which the broker blocks publishers.
type alarm struct {
	reason string
	off    chan struct{} // closed when it is over
}

func newLink(w *wire, log *slog.Logger, running *sync.WaitGroup) *link {
	l := &link{wire: w, log: log, running: running, over: make(chan struct{}), opening: make(chan struct{}, 1), outlets: map[string]*outlet{}}
	closes := w.conn.NotifyClose(make(chan *amqp.Error, 1))
	blocks := w.conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	running.Go(func() {
		for closes != nil {
			select {
			case e := <-closes:
				l.end(e, w.cutFor())
				closes = nil
			case b, ok := <-blocks:
				if !ok {
					blocks = nil
					continue
				}
				l.block(b)
			}
		}
	})
	running.Go(l.judge)
	return l
}

// judge answers what the broker has decided, each time something has come in.
// No message waits in a goroutine of its own, and none behind another.
func (l *link) judge() {
	often := time.NewTicker(judgeAnyhow)
	defer often.Stop()
	for {
		select {
		case <-l.wire.out.handled:
		case <-often.C:
		case <-l.over:
			return
		}
		for _, o := range l.open() {
			o.judge()
		}
	}
}

// judgeAnyhow is how often it is looked for decisions without a sign of them,
// should the library come to handle what it reads later than it does now.
const judgeAnyhow = 50 * time.Millisecond

// open returns the outlets that there are.
func (l *link) open() []*outlet {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.outlets))
}

// broken ends a connection that could not be written to. If the broker has said
// why, its words come first.
func (l *link) broken(err error) {
	select {
	case <-l.over:
	case <-time.After(lastWords):
		l.cut(fmt.Errorf("write: %w", err))
	}
}

// lastWords is how long the broker's reason may take to arrive after a write
// failed.
const lastWords = 200 * time.Millisecond

func (l *link) block(b amqp.Blocking) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.alarm != nil {
		close(l.alarm.off)
		l.alarm = nil
	}
	if b.Active {
		l.alarm = &alarm{b.Reason, make(chan struct{})}
		l.log.Warn("the broker blocks publishers", slog.String("reason", b.Reason))
	} else {
		l.log.Info("the broker accepts publishes again")
	}
}

func (l *link) raised() *alarm {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alarm
}

// clear waits until something may be published.
func (l *link) clear(ctx context.Context) error {
	for {
		a := l.raised()
		if a == nil {
			if ctx.Err() != nil {
				return unavailable("publish", ctx.Err())
			}
			return nil
		}
		select {
		case <-a.off:
		case <-l.over:
			return unavailable("publish", l.lost())
		case <-ctx.Done():
			return fmt.Errorf("%w: the broker blocks publishers: %s", waybill.ErrUnavailable, a.reason)
		}
	}
}

// blamingAlarm adds to err that the broker blocks publishers, if it does.
func (l *link) blamingAlarm(err error) error {
	if a := l.raised(); a != nil {
		return fmt.Errorf("the broker blocks publishers: %s: %w", a.reason, err)
	}
	return err
}

// outlet returns a channel to publish to exchange, and opens one when there is
// none or the last one has ended.
func (l *link) outlet(ctx context.Context, exchange string) (*outlet, error) {
	if o := l.find(exchange); o != nil {
		return o, nil
	}
	select {
	case l.opening <- struct{}{}:
		defer func() { <-l.opening }()
	case <-ctx.Done():
		return nil, unavailable("open a channel", ctx.Err())
	}
	if o := l.find(exchange); o != nil {
		return o, nil
	}
	var ch *amqp.Channel
	err := l.wire.until(ctx, func() (err error) {
		if ch, err = l.wire.conn.Channel(); err == nil {
			err = ch.Confirm(false)
		}
		return err
	})
	if err != nil {
		return nil, unavailable("open a channel", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return nil, unavailable("open a channel", l.lost())
	}
	o := newOutlet(l, ch)
	l.outlets[exchange] = o
	return o, nil
}

func (l *link) find(exchange string) *outlet {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.outlets[exchange]; o != nil && !o.isOver() {
		return o
	}
	return nil
}

// lost says why a connection that has ended has.
func (l *link) lost() error {
	if cause := l.wire.cutFor(); cause != nil {
		return cause
	}
	return amqp.ErrClosed
}

// cut ends the connection at once and answers what is unresolved.
func (l *link) cut(cause error) {
	l.wire.cut(cause)
	l.end(nil, l.wire.cutFor())
}

// end answers what is unresolved on a connection that ended with e or was cut
// for cause. Only the first call counts.
func (l *link) end(e *amqp.Error, cause error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	outlets := l.outlets
	l.mu.Unlock()
	var lost []*publish
	for _, o := range outlets {
		lost = append(lost, o.end(e)...)
	}
	close(l.over) // last: nothing is added to running after it
	answer := verdict(lost, e, cause)
	for _, p := range lost {
		p.answer(answer(p))
	}
	if errors.Is(cause, errPublisherClosed) {
		return
	}
	if cause == nil {
		cause = said(e)
	}
	l.log.Warn("connection to publish ended", slog.Int("unconfirmed", len(lost)), slog.Any("err", cause))
}
