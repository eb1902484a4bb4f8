package wayamqp

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

// refusedUser matches the refusal of a user without permissions, not that of a limit, which has more words.
var refusedUser = regexp.MustCompile(`^NOT_ALLOWED - access to vhost '.*' refused for user '.*'$`)

// said returns err in the broker's or the network's own words.
func said(err error) error {
	var e *amqp.Error
	switch {
	case !errors.As(err, &e):
		return err
	case e == nil:
		return errors.New("the connection was closed")
	case e.Server && e.Code == amqp.NotAllowed && strings.HasSuffix(e.Reason, "not found"):
		return fmt.Errorf("%d %s: create the virtual host, or mend the path of the URL", e.Code, e.Reason)
	case e.Server && e.Code == amqp.NotAllowed && refusedUser.MatchString(e.Reason):
		return fmt.Errorf("%d %s: give the user permissions for it, as `rabbitmqctl set_permissions -p` does", e.Code, e.Reason)
	case e.Server:
		return fmt.Errorf("%d %s", e.Code, e.Reason)
	}
	return errors.New(e.Reason)
}

// unavailable returns the error of an operation that an outage prevented.
func unavailable(doing string, err error) error {
	return fmt.Errorf("%w: %s: %w", waybill.ErrUnavailable, doing, said(err))
}

// isSoft reports whether e ended a channel only: the connection stays. The
// codes are the soft errors of the specification.
func isSoft(e *amqp.Error) bool {
	if e == nil || !e.Server {
		return false
	}
	switch e.Code {
	case amqp.ContentTooLarge, amqp.NoRoute, amqp.NoConsumers, amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed:
		return true
	}
	return false
}

const raiseTimeout = "raise it above the longest run of a handler and the longest delay of a retry"

// timedOut adds to the error of a channel that the broker closed for a message kept
// too long what the operator can do. The wording differs by version; the code alone
// says only that a precondition failed.
func timedOut(e *amqp.Error) error {
	if e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "timed out") {
		return fmt.Errorf("a message was kept for longer than the broker's consumer_timeout: %s: %w", raiseTimeout, said(e))
	}
	return e
}

// errBlocked means that a memory or disk alarm keeps the broker from reading.
var errBlocked = errors.New("the broker blocks publishers")

// verdict returns the result of the publishes that were unresolved when a channel
// or connection ended with e, or was cut for cause.
func verdict(lost []*publish, e *amqp.Error, cause error) func(*publish) error {
	switch {
	case errors.Is(cause, errBlocked): // an alarm is not caused by a message
		return func(*publish) error { return unavailable("publish", cause) }
	case cause != nil:
		return func(*publish) error { return &outbox.ConnectionLostError{Err: cause} }
	case e == nil || !e.Server || e.Code == amqp.ConnectionForced:
		return func(*publish) error { return &outbox.ConnectionLostError{Err: said(e)} }
	case e.Code == amqp.NotFound, e.Code == amqp.AccessRefused && oneRoute(lost):
		return func(p *publish) error { return unroutable(p, e) }
	case len(lost) == 1:
		return func(*publish) error { return fmt.Errorf("the broker refused it: %w", said(e)) }
	}
	return func(*publish) error { return &outbox.ConnectionLostError{Err: said(e), CausedByMessage: true} }
}

// oneRoute reports whether all of lost have one routing key. If not, a refused
// access may concern one of them: there are permissions per topic.
func oneRoute(lost []*publish) bool {
	for _, p := range lost {
		if p.key != lost[0].key {
			return false
		}
	}
	return true
}

func unroutable(p *publish, e *amqp.Error) error {
	return &outbox.UnroutableError{Exchange: p.exchange, RoutingKey: p.key, Reason: said(e).Error()}
}
