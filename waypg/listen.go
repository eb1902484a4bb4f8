package waypg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// listenHeartbeat is how long a listener hears nothing before it asks whether
// the server is still there, and how long it waits for the answer.
const listenHeartbeat = 5 * time.Second

// A listener hears of commits of other processes, on one connection outside the
// pool that is always being read, and passes them on as hints. It runs while a
// relay runs, and from the first Receive of a queue until DB.Close. Without a connection it has an error, and relays poll as without it.
type listener struct {
	db        *DB
	to        *pgx.ConnConfig // nil means where the pool leads
	heartbeat time.Duration

	turn    sync.Mutex // guards holders and end
	holders int
	end     func()

	mu         sync.Mutex // guards the fields below
	transports []string
	interrupt  context.CancelFunc // ends the wait of run; nil before the first
	err        string             // see ListenError
}

// hold keeps the listener running until the returned function is called.
func (l *listener) hold(ctx context.Context, p *catalog) (release func()) {
	if l == nil {
		return func() {}
	}
	l.turn.Lock()
	defer l.turn.Unlock()
	if l.holders++; l.holders == 1 {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.run(ctx, p)
		}()
		l.end = func() { cancel(); <-done }
	}
	return sync.OnceFunc(func() {
		l.turn.Lock()
		defer l.turn.Unlock()
		if l.holders--; l.holders == 0 {
			l.end()
		}
	})
}

// listenForQueue has the listener run, until DB.Close, and listen for a queue.
func (db *DB) listenForQueue(ctx context.Context, p *catalog, queue string) {
	if db.listener == nil {
		return
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.unlisten == nil {
		db.unlisten = db.listener.hold(ctx, p)
	}
	db.listener.add(queuePrefix + queue)
}

// add makes it listen for a transport, at once if it runs.
func (l *listener) add(transport string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(l.transports, transport) {
		return
	}
	l.transports = append(l.transports, transport)
	if l.interrupt != nil {
		l.interrupt()
	}
}

// ListenError implements outbox.Store.
func (db *DB) ListenError() string {
	if db.listener == nil {
		return ""
	}
	db.listener.mu.Lock()
	defer db.listener.mu.Unlock()
	return db.listener.err
}

func (l *listener) setError(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = why
}

// run listens until ctx ends, on one connection after another.
func (l *listener) run(ctx context.Context, p *catalog) {
	defer l.setError("")
	for failures := 1; ; failures++ {
		began := time.Now()
		err := l.hear(ctx, p)
		if ctx.Err() != nil {
			return
		}
		l.setError(oneLine(err))
		if time.Since(began) > 2*l.heartbeat {
			failures = 1
		}
		select {
		case <-time.After(reconnect.After(failures, nil)):
		case <-ctx.Done():
			return
		}
	}
}

// hear listens until the connection is of no use any more, or ctx ends.
func (l *listener) hear(ctx context.Context, p *catalog) error {
	conn, err := l.connect(ctx, p)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	transports := map[string]string{} // by channel
	alive := time.Now()
	for {
		if err := l.subscribe(ctx, conn, p, transports); err != nil {
			return err
		}
		wait, cancel := context.WithDeadline(ctx, alive.Add(l.heartbeat))
		if !l.waits(len(transports), cancel) {
			cancel()
			continue // another one was added meanwhile
		}
		heard, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case heard != nil:
			alive = time.Now()
			// This DB has hinted at its own commits before it announced them.
			if transport, ok := transports[heard.Channel]; ok && heard.Payload != l.db.self {
				l.hint(transport)
			}
		case ctx.Err() != nil:
			return ctx.Err()
		case conn.IsClosed():
			return fmt.Errorf("listen: %w", err)
		case time.Since(alive) >= l.heartbeat:
			if err := l.beat(ctx, conn); err != nil {
				return err
			}
			alive = time.Now()
		}
	}
}

// hint wakes the relay of a transport, or the receivers of a queue.
func (l *listener) hint(transport string) {
	if queue, ok := strings.CutPrefix(transport, queuePrefix); ok {
		l.db.wakes.HintQueue(queue)
		return
	}
	l.db.wakes.Hint(transport)
}

// waits notes what ends the coming wait, unless there are more transports than
// so many.
func (l *listener) waits(transports int, interrupt context.CancelFunc) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupt = interrupt
	return len(l.transports) == transports
}

var errPooled = errors.New("the connection to listen on goes through a pooler: name the server itself (option listen, Config.Listen)")

// connect returns a connection that hears the outbox's announcements, or an error.
func (l *listener) connect(ctx context.Context, p *catalog) (_ *pgx.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.heartbeat)
	defer cancel()
	conn, err := l.db.dial(ctx, l.to)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			hangUp(conn)
		}
	}()
	if err := direct(ctx, conn); err != nil {
		return nil, err
	}
	if l.to != nil {
		if err := l.sameServer(ctx, conn, p); err != nil {
			return nil, err
		}
	}
	var set int
	return conn, translate(conn.QueryRow(ctx, p.wake.Query("prepare_listener")).Scan(&set))
}

// sameServer refuses a connection to where nothing of the outbox is announced.
func (l *listener) sameServer(ctx context.Context, conn *pgx.Conn, p *catalog) error {
	outboxes, err := l.db.dial(ctx, nil) // the pool's may all be busy
	if err != nil {
		return err
	}
	defer hangUp(outboxes)
	var database [2]string
	var started [2]time.Time
	for i, c := range []*pgx.Conn{conn, outboxes} {
		if err := c.QueryRow(ctx, p.wake.Query("server")).Scan(&database[i], &started[i]); err != nil {
			return translate(err)
		}
	}
	switch {
	case database[0] != database[1]:
		return fmt.Errorf("the connection to listen on leads to the database %s, and the outbox is in %s", database[0], database[1])
	case !started[0].Equal(started[1]):
		return errors.New("the connection to listen on leads to another server than the outbox's")
	}
	return nil
}

// direct refuses a connection through a pooler: LISTEN would run on a connection
// of the pooler, whose notifications no client reads.
func direct(ctx context.Context, conn *pgx.Conn) error {
	pooled, err := behindPooler(ctx, conn)
	if err != nil {
		return translate(err)
	}
	if pooled {
		return errPooled
	}
	return nil
}

// beat asks whether the server is still there.
func (l *listener) beat(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, l.heartbeat)
	defer cancel()
	if err := direct(ctx, conn); err != nil {
		return fmt.Errorf("heartbeat of the listener: %w", err)
	}
	return nil
}

// subscribe listens for new transports, and has relays read their rows: earlier
// commits are not heard.
func (l *listener) subscribe(ctx context.Context, conn *pgx.Conn, p *catalog, transports map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, l.heartbeat)
	defer cancel()
	l.mu.Lock()
	wanted := slices.Clone(l.transports)
	l.mu.Unlock()
	for _, transport := range wanted {
		channel := channelOf(p, l.db.prefix, transport)
		if _, ok := transports[channel]; ok {
			continue
		}
		if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
			return fmt.Errorf("listen: %w", translate(err))
		}
		transports[channel] = transport
		l.hint(transport)
	}
	l.setError("")
	return nil
}

// oneLine is an error for a log or a report: the client's have a line for each
// address and try, which often say the same thing twice.
func oneLine(err error) string {
	var connect *pgconn.ConnectError
	var network *net.OpError
	if errors.As(err, &connect) && errors.As(err, &network) {
		err = translate(network)
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
