package sim

import (
	"fmt"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/keyorder"
	"github.com/waybill-go/waybill/outbox"
)

// publish sends the records of rows, in the order of a PublishQueue, until each is answered.
func (r *relaying) publish(rows []outbox.ClaimedRow) *keyorder.PublishQueue {
	records := make([]*waybill.Record, len(rows))
	for i, row := range rows {
		records[i] = row.Record
	}
	c := keyorder.NewPublishQueue(records, false)
	if r.mutant == TwoInFlight {
		c.Pipeline(func(rec *waybill.Record) string { return "" })
	}
	p := &publishing{thread: r.thread, link: r.link, queue: c, deadline: r.now + publishDeadline}
	r.after(publishDeadline, p.late)
	for {
		if r.now > p.deadline-publishDeadline/2 {
			c.Stop()
		}
		for _, i := range c.Take(window-c.Open(), nil) {
			r.step("publish")
			no, _ := strconv.Atoi(records[i].Name)
			r.link.publish(p, i, r.laws.messages[no])
		}
		if c.Open() == 0 {
			return c
		}
		if len(p.answers) == 0 { // no answer arrived while sending
			p.waits = true
			r.wait()
		}
		for _, answer := range p.answers {
			c.Done(answer.i, answer.err)
		}
		p.answers = nil
	}
}

// An answer is the result of one record.
type answer struct {
	i   int
	err error
}

// publishing is a batch in the course of publishing.
type publishing struct {
	*thread
	link     *link
	queue    *keyorder.PublishQueue
	deadline time.Duration
	answers  []answer
	waits    bool
}

// late cuts the connection at the deadline, or once the process is no longer frozen.
func (p *publishing) late() {
	switch {
	case p.dead || p.queue.Open() == 0:
	case p.frozen > p.now:
		p.after(p.frozen-p.now, p.late)
	default:
		p.link.cut()
	}
}

// answered is called with the broker's answer, or with errCut if there will be none.
func (p *publishing) answered(i int, err error) {
	p.answers = append(p.answers, answer{i, err})
	if p.waits {
		p.waits = false
		p.after(0, p.resume)
	}
}

var errCut = fmt.Errorf("%w: the connection is cut", waybill.ErrUnavailable)
