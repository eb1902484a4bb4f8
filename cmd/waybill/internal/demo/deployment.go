package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
)

// transport is the name under which messages leave the order service. It is the
// demo's alone.
const transport = "waybill_demo"

// broker is where the relays publish to and billing receives from.
type broker interface {
	waybill.Receiver
	// transport is its DSN, for the configuration of a relay.
	transport() string
	// waiting counts the messages that are not in flight to a consumer.
	waiting(ctx context.Context) (int, error)
	// rest returns the messages left when billing has ended.
	rest(ctx context.Context) ([]waybill.MessageID, error)
	// lose lets the acknowledgements of ds get lost, or reports false.
	lose(ctx context.Context, ds []*waybill.Delivery) bool
	// stall keeps the broker from storing anything until proceed is called.
	stall(ctx context.Context) (proceed func(), err error)
	close() error
}

// deployment holds the services and the broker of a demo.
type deployment struct {
	dir             string // temporary
	orders, billing service
	broker          broker
	config          string // path of the relays' configuration
}

// ErrOpen says that a database or broker given to the demo could not be used.
var ErrOpen = errors.New("cannot be used")

func newDeployment(ctx context.Context, opt Options) (_ *deployment, err error) {
	s := &deployment{}
	if s.dir, err = os.MkdirTemp("", "waybill-demo-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.orders, err = s.open(ctx, opt, opt.Database, "orders"); err != nil {
		return nil, fmt.Errorf("the database %w: %w", ErrOpen, err)
	}
	if opt.Broker.Scheme == "amqp" {
		s.broker, err = openRabbit(ctx, opt.Broker)
	} else {
		s.broker, err = openFileBroker(ctx, opt.Broker.Path, s.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("the broker %w: %w", ErrOpen, err)
	}
	// Billing is another service: in a separate schema, under a separate prefix or,
	// on SQLite, in a separate file.
	other := opt.Database
	if other.Scheme == "sqlite" {
		other = config.DSN{}
	}
	if s.billing, err = s.open(ctx, opt, other, "billing"); err != nil {
		return nil, err
	}
	s.config = filepath.Join(s.dir, "waybill.yaml")
	yaml := fmt.Sprintf("database: %q\ntransports:\n  %s: { dsn: %q }\noutbox: { to: %s }\n", s.orders.dsn(), transport, s.broker.transport(), transport)
	return s, os.WriteFile(s.config, []byte(yaml), 0o600)
}

func (s *deployment) open(ctx context.Context, opt Options, dsn config.DSN, part string) (service, error) {
	switch dsn.Scheme {
	case "postgres":
		return openPostgres(ctx, dsn, opt.ConnString, part)
	case "mysql":
		return openMySQL(ctx, dsn, opt.OpenMySQL, part)
	}
	return openSQLite(ctx, dsn.Path, s.dir)
}

// pending counts the messages that wait in the outbox and in the broker.
func (s *deployment) pending(ctx context.Context) (inOutbox, inBroker int, err error) {
	left, err := s.orders.Backlog(ctx, transport)
	if err != nil {
		return 0, 0, err
	}
	inBroker, err = s.broker.waiting(ctx)
	return left.Pending, inBroker, err
}

// waitUntilEmpty waits until nothing is on its way any more and inHand counts
// nothing, and reports false when ctx ended before that.
func (s *deployment) waitUntilEmpty(ctx context.Context, inHand func() int) (bool, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for empty := 0; empty < 3; { // thrice, for messages that move between two counts
		select {
		case <-ctx.Done():
			return false, nil
		case <-tick.C:
		}
		out, broker, err := s.pending(ctx)
		switch {
		case ctx.Err() != nil:
			return false, nil
		case err != nil:
			return false, err
		case out+broker+inHand() == 0:
			empty++
		default:
			empty = 0
		}
	}
	return true, nil
}

func (s *deployment) close() {
	if s.broker != nil {
		_ = s.broker.close()
	}
	if s.orders != nil {
		_ = s.orders.close()
	}
	if s.billing != nil {
		_ = s.billing.close()
	}
	_ = os.RemoveAll(s.dir)
}
