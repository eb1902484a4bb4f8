package wayamqp

import (
	"context"
	"errors"
)

var errSuspended = errors.New("wayamqp: the consumer is suspended")

// Suspend implements waybill.Receiver: the connection ends, and with it the subscription, so
// that the broker has all messages again. The retry times of failed messages are kept.
func (c *Consumer) Suspend(ctx context.Context) error {
	select {
	case c.connecting <- struct{}{}:
		defer func() { <-c.connecting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	s := c.session
	c.resting = true
	c.mu.Unlock()
	if s == nil {
		return nil
	}
	s.conn.close(errSuspended)
	select {
	case <-s.closed:
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session = nil // it is no outage
	return nil
}
