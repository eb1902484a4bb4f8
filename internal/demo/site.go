package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// transport is the name under which messages leave the order service, and the
// name of the broker's queue. It is the demo's alone.
const transport = "waybill_demo"

// ErrUsed says that a database given to the demo has something in it.
var ErrUsed = errors.New("the demo wants a database without messages in it, and not used by the demo before")

// lease is how long the broker waits for an acknowledgement.
const lease = time.Second

// site is where the demo takes place: three SQLite files.
type site struct {
	dir                     string // temporary
	orders, broker, billing *waysqlite.DB
	outbox                  *outbox.Outbox[*sql.Tx]
	config                  string // path of the relays' configuration
}

func newSite(ctx context.Context, opt Options) (_ *site, err error) {
	s := &site{}
	if s.dir, err = os.MkdirTemp("", "waybill-demo-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for _, part := range []struct {
		db    **waysqlite.DB
		path  string
		table string
	}{
		{&s.orders, opt.Database, "CREATE TABLE demo_steps (order_id INTEGER NOT NULL, step INTEGER NOT NULL, message_id BLOB NOT NULL)"},
		{&s.broker, opt.Broker, ""},
		// Without a unique index on purpose: a second effect must be visible.
		{&s.billing, "", "CREATE TABLE demo_effects (order_id INTEGER NOT NULL, step INTEGER NOT NULL, message_id BLOB NOT NULL)"},
	} {
		if *part.db, err = s.open(ctx, part.path, part.table); err != nil {
			return nil, err
		}
	}
	if s.outbox, err = outbox.New(s.orders, outbox.Config{To: transport}); err != nil {
		return nil, err
	}
	s.config = filepath.Join(s.dir, "waybill.yaml")
	yaml := fmt.Sprintf("database: %q\ntransports:\n  %s: { dsn: %q }\noutbox: { to: %s }\n",
		"sqlite://"+(&url.URL{Path: s.orders.Path()}).EscapedPath(), transport,
		"queue://"+transport+"?database="+url.QueryEscape("sqlite://"+(&url.URL{Path: s.broker.Path()}).EscapedPath()), transport)
	return s, os.WriteFile(s.config, []byte(yaml), 0o600)
}

func (s *site) open(ctx context.Context, path, table string) (*waysqlite.DB, error) {
	if path == "" {
		file, err := os.CreateTemp(s.dir, "*.db")
		if err != nil {
			return nil, err
		}
		path = file.Name()
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
	db, err := waysqlite.Open(path, waysqlite.Config{})
	if err != nil {
		return nil, err
	}
	if _, err := db.SchemaUp(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if err := refuseUsed(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if table == "" {
		return db, nil
	}
	if _, err := db.SQL().ExecContext(ctx, table); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// refuseUsed keeps the demo away from messages that are not its own.
func refuseUsed(ctx context.Context, db *waysqlite.DB) error {
	var messages, tables int
	err := db.ReadSQL().QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM waybill_outbox) + (SELECT count(*) FROM waybill_delayed) + (SELECT count(*) FROM waybill_queue),
		(SELECT count(*) FROM sqlite_schema WHERE name LIKE 'demo\_%' ESCAPE '\')`).Scan(&messages, &tables)
	if err == nil && messages+tables > 0 {
		err = fmt.Errorf("%s: %w", db.Path(), ErrUsed)
	}
	return err
}

// pending counts the messages that wait in the outbox and in the broker.
func (s *site) pending(ctx context.Context) (inOutbox, inBroker int, err error) {
	left, err := s.orders.Left(ctx, transport)
	if err != nil {
		return 0, 0, err
	}
	queues, err := s.broker.QueueStats(ctx)
	if err != nil {
		return 0, 0, err
	}
	for _, q := range queues {
		if q.Queue == transport {
			inBroker = q.Pending
		}
	}
	return left.Pending, inBroker, nil
}

// waitUntilEmpty waits until nothing is on its way any more, and reports false
// when ctx ended before that.
func (s *site) waitUntilEmpty(ctx context.Context) (bool, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for empty := 0; empty < 3; { // thrice, for what moves between two looks
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
		case out+broker == 0:
			empty++
		default:
			empty = 0
		}
	}
	return true, nil
}

func (s *site) close() {
	for _, db := range []*waysqlite.DB{s.orders, s.broker, s.billing} {
		if db != nil {
			_ = db.Close()
		}
	}
	_ = os.RemoveAll(s.dir)
}
