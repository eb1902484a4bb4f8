package waypg

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
)

const (
	// notifyEvery is the least time between two announcements of one process. It
	// is also how much later than the first a message may be heard of.
	notifyEvery = 10 * time.Millisecond
	// notifyTimeout bounds one announcement, with the connecting before it.
	notifyTimeout = 2 * time.Second
	// hangUpTimeout bounds the end of a connection that may be dead.
	hangUpTimeout = time.Second
)

// reconnect says when a notifier or listener that has lost its connection tries
// again.
var reconnect = waybill.Backoff{Delay: 100 * time.Millisecond, Multiplier: 2, MaxDelay: 5 * time.Second}

// channelOf names the channel on which the commits of a transport's messages are
// announced; of a queue it is queue://NAME. Other languages compute the same: see
// docs/schema.md.
func channelOf(p *catalog, prefix, transport string) string {
	sum := md5.Sum([]byte(p.database + "/" + qualified(p.schema, prefix) + "/" + transport))
	return "waybill_" + hex.EncodeToString(sum[:])
}

// queuePrefix makes a queue's name one of a transport, for announcements.
const queuePrefix = "queue://"

// NotifyStats counts the announcements of a DB with Config.Notify.
type NotifyStats struct {
	Sent   int64 // announcements, each of one transport or queue
	Failed int64 // attempts that failed; relays and workers found those messages by polling
}

// A notifier announces to other processes that this one has committed rows, on
// one connection outside the pool: the first commit after an idle time at once,
// later ones within notifyEvery together. No dispatcher waits for it. An
// announcement that fails is not repeated, because relays also poll.
type notifier struct {
	db    *DB
	log   *slog.Logger
	every time.Duration // notifyEvery

	more chan struct{} // holds a token after something was added to pending
	stop chan struct{}

	sent, failed atomic.Int64

	mu      sync.Mutex
	pending map[string]bool // transports and queues
	done    chan struct{}   // nil before the first hint; closed when run has ended
	closed  bool

	conn     *pgx.Conn // used by run alone, as is failures
	failures int       // in a row
}

func newNotifier(db *DB, log *slog.Logger) *notifier {
	return &notifier{db: db, log: log, every: notifyEvery, more: make(chan struct{}, 1), stop: make(chan struct{}), pending: map[string]bool{}}
}

// hint says that rows of a transport were committed. It never blocks.
func (n *notifier) hint(transport string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	n.pending[transport] = true
	if n.done == nil {
		n.done = make(chan struct{})
		go n.run(context.Background()) // each announcement has its own end
	}
	select {
	case n.more <- struct{}{}:
	default:
	}
}

// close sends pending announcements, within notifyTimeout, and ends run.
func (n *notifier) close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	done, again := n.done, n.closed
	n.closed = true
	n.mu.Unlock()
	if again || done == nil {
		return
	}
	close(n.stop)
	<-done
}

func (n *notifier) run(ctx context.Context) {
	defer close(n.done)
	defer n.hangUp()
	for {
		select {
		case <-n.more:
		case <-n.stop:
			if n.failures == 0 {
				n.announce(ctx)
			}
			return
		}
		n.announce(ctx)
		pause := n.every
		if n.failures > 0 {
			pause = reconnect.After(n.failures, nil)
		}
		select {
		case <-time.After(pause):
		case <-n.stop: // seen again above
		}
	}
}

// announce sends pending announcements.
func (n *notifier) announce(ctx context.Context) {
	n.mu.Lock()
	transports := slices.Sorted(maps.Keys(n.pending))
	clear(n.pending)
	n.mu.Unlock()
	if len(transports) == 0 {
		return
	}
	err := n.send(ctx, transports)
	if err == nil {
		n.sent.Add(int64(len(transports)))
		if n.failures > 0 {
			n.log.LogAttrs(ctx, slog.LevelInfo, "commits are announced again")
		}
		n.failures = 0
		return
	}
	n.hangUp()
	n.failed.Add(1)
	if n.failures++; n.failures == 1 {
		n.log.LogAttrs(ctx, slog.LevelWarn, "commits cannot be announced, relays and workers of other processes find them by polling", slog.String("err", oneLine(err)))
	}
}

func (n *notifier) send(ctx context.Context, transports []string) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	p, err := n.db.resolve(ctx)
	if err != nil {
		return err
	}
	channels := make([]string, len(transports))
	for i, transport := range transports {
		channels[i] = channelOf(p, n.db.prefix, transport)
	}
	for {
		reused := n.conn != nil
		if !reused {
			if n.conn, err = n.db.dial(ctx, nil); err != nil {
				return err
			}
		}
		_, err = n.conn.Exec(ctx, p.wake.Query("announce"), channels, n.db.self)
		if err == nil || !reused {
			return translate(err)
		}
		n.hangUp() // it may have died while nothing was committed
	}
}

func (n *notifier) hangUp() {
	if n.conn != nil {
		hangUp(n.conn)
		n.conn = nil
	}
}

// NotifyStats returns the counts since the DB was made.
func (db *DB) NotifyStats() NotifyStats {
	if db.notifier == nil {
		return NotifyStats{}
	}
	return NotifyStats{db.notifier.sent.Load(), db.notifier.failed.Load()}
}

// dial makes a connection that no pool knows, to where the pool's lead unless to
// says otherwise.
func (db *DB) dial(ctx context.Context, to *pgx.ConnConfig) (*pgx.Conn, error) {
	if to == nil {
		cfg := db.pool.Config() // a copy
		to = cfg.ConnConfig
		if cfg.BeforeConnect != nil {
			if err := cfg.BeforeConnect(ctx, to); err != nil {
				return nil, err
			}
		}
	}
	to = to.Copy()
	to.OnNotification = nil // or the connection would not keep its notifications
	to.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, to)
	return conn, translate(err)
}

// hangUp closes a connection that may be dead.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}
