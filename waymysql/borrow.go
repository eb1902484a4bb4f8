package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
)

// New uses a pool of the caller's, which Close leaves open: one of
// github.com/go-sql-driver/mysql, with interpolateParams=true and charset=utf8mb4, and
// without clientFoundRows. It connects, for at most ten seconds, and refuses another pool
// with an error that names the parameter; clientFoundRows is refused by the first write.
//
// Units of work, claims and queues borrow sessions of the pool. A session has the settings
// that they need until its own are put back; then the pool has it again. Where that fails
// it is closed. Compared with Open this costs two or three round trips more for each.
// A relay borrows 2 x Workers + 1 sessions to publish, and needs one more: it refuses a pool
// that is limited to fewer than 6.
func New(pool *sql.DB, cfg Config) (*DB, error) {
	if pool == nil {
		return nil, errors.New("waymysql: New needs a pool")
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	schema, err := checkPool(ctx, pool)
	if err != nil {
		return nil, err
	}
	if schema = cmp.Or(cfg.Schema, schema); schema == "" {
		return nil, errors.New("waymysql: neither the pool's connections nor the configuration name a database")
	}
	db, err := newDB(nil, schema, cfg)
	if err != nil {
		return nil, err
	}
	db.sessions, db.pool = loans{pool, db.serving}, pool
	most := cmp.Or(cfg.MaxConns, defaultConns)
	if limit := pool.Stats().MaxOpenConnections; limit > 0 {
		most = min(most, limit)
	}
	return db, db.openUnits(most)
}

// checkTimeout limits how long New waits for the server.
const checkTimeout = 10 * time.Second

// checkPool refuses a pool whose sessions are not as waybill needs them, and returns the
// name of their database, which may be empty.
func checkPool(ctx context.Context, pool *sql.DB) (schema string, err error) {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return "", fmt.Errorf("waymysql: %w", translate(err))
	}
	defer conn.Close()
	serving := mustNamed("server", "app", defaultPrefix)
	_ = conn.Raw(func(raw any) error {
		full, ok := raw.(fullConn)
		if !ok {
			err = errIncomplete
			return nil
		}
		// The driver leaves it to the caller to prepare.
		_, err = full.ExecContext(ctx, serving.Query("one_argument"), []driver.NamedValue{{Ordinal: 1, Value: int64(1)}})
		return nil
	})
	switch {
	case errors.Is(err, driver.ErrSkip):
		return "", &poolError{"interpolateParams", "false", "true", "each statement would be three round trips, and compound ones cannot be prepared"}
	case err != nil:
		return "", fmt.Errorf("waymysql: %w", translate(err))
	}
	var autocommit, completion, client, results string
	if err := conn.QueryRowContext(ctx, serving.Query("session")).Scan(&schema, &autocommit, &completion, &client, &results); err != nil {
		return "", fmt.Errorf("waymysql: %w", translate(err))
	}
	for _, is := range []poolError{
		{"charset", client, "utf8mb4", "waybill writes and reads UTF-8"},
		{"charset", results, "utf8mb4", "waybill writes and reads UTF-8"},
		{"autocommit", autocommit, "1", "single statements would not be committed"},
		{"completion_type", completion, "NO_CHAIN", "COMMIT would begin another transaction, or end the session"},
	} {
		if is.value != is.want {
			return "", &is
		}
	}
	return schema, nil
}

// A poolError says which parameter of the caller's DSN must be another.
type poolError struct{ name, value, want, why string }

func (e *poolError) Error() string {
	return fmt.Sprintf("waymysql: the pool's connections have %s=%s: open it with %s=%s in its DSN: %s", e.name, e.value, e.name, e.want, e.why)
}

// checkChangedRows refuses a pool of the caller's that counts found rows in place of
// changed ones.
func (db *DB) checkChangedRows(ctx context.Context) error {
	if !db.borrows() {
		return nil
	}
	n, err := affected(db.pool.ExecContext(ctx, db.outbox.Query("change_nothing")))
	if err == nil && n > 0 {
		err = &poolError{"clientFoundRows", "true", "false", "waybill counts the rows that a statement changes"}
	}
	return translate(err)
}

// borrows reports whether the pool is the caller's.
func (db *DB) borrows() bool { _, ok := db.sessions.(loans); return ok }

// relayConns is how many connections a relay with its usual number of workers needs.
const relayConns = 6

// checkRelayConns refuses a pool whose connections could all be held by claims, each of
// which may need another one for a statement.
func (db *DB) checkRelayConns() error {
	if n := db.pool.Stats().MaxOpenConnections; db.borrows() && n > 0 && n < relayConns {
		return fmt.Errorf("waymysql: the pool may open %d connections: call SetMaxOpenConns with %d or more: a relay keeps one for each batch that it publishes", n, relayConns)
	}
	return nil
}

// loans are sessions that a pool of the caller's lends.
type loans struct {
	pool *sql.DB
	sql  sqlfile.Set
}

// open implements sessions. No session stays idle: the caller's pool has a limit.
func (l loans) open(settings map[string]string, wrap func(driver.Connector) driver.Connector, _ time.Duration) (*sql.DB, error) {
	settings = unchained(settings)
	var begin, end []clause
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		name, value := clause{text: name}, clause{text: settings[name]}
		begin = append(begin, fill(l.sql.Query("borrow_setting"), name, name, name, value))
		end = append(end, fill(l.sql.Query("return_setting"), name, name))
	}
	set := func(all []clause) string { return fill(l.sql.Query("set"), joined(all, ", ")).text }
	pool := sql.OpenDB(wrap(lender{l.pool, set(begin), set(end)}))
	pool.SetMaxIdleConns(-1)
	return pool, nil
}

// A lender connects by a session of the pool.
type lender struct {
	pool       *sql.DB
	begin, end string
}

// Driver implements driver.Connector.
func (l lender) Driver() driver.Driver { return l.pool.Driver() }

// Connect implements driver.Connector. A goroutine keeps the session inside of Raw, which
// is where the driver's connection may be used, until it is given back.
func (l lender) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := l.pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	b := &borrowed{end: l.end, clean: make(chan bool, 1), ended: make(chan struct{})}
	ready := make(chan error, 1)
	go func() {
		defer close(b.ended)
		defer conn.Close()
		_ = conn.Raw(func(raw any) error {
			full, ok := raw.(fullConn)
			if !ok {
				ready <- errIncomplete
				return nil
			}
			b.fullConn = full
			_, err := full.ExecContext(ctx, l.begin, nil)
			if ready <- err; err != nil || !<-b.clean {
				return driver.ErrBadConn // closes it
			}
			return nil
		})
	}()
	if err := <-ready; err != nil {
		<-b.ended
		return nil, err
	}
	return b, nil
}

// A borrowed session is one of the caller's pool.
type borrowed struct {
	fullConn
	end    string        // the statement that puts its settings back
	spoilt bool          // it must not be used again
	clean  chan bool     // gets whether the pool may have it again
	ended  chan struct{} // closed when the pool has it, or has closed it
}

// Close implements driver.Conn. It gives the session back with its own settings and without
// a transaction: to switch autocommit on would commit an open one.
func (b *borrowed) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), sqlcore.RollbackTimeout)
	defer cancel()
	clean := !b.spoilt && b.IsValid()
	for _, statement := range []string{"ROLLBACK", b.end} {
		if clean {
			_, err := b.ExecContext(ctx, statement, nil)
			clean = err == nil
		}
	}
	b.clean <- clean
	<-b.ended
	return nil
}

// discard has a session closed, and not used again.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(raw any) error {
		spoil(raw)
		return driver.ErrBadConn
	})
}

func spoil(raw any) {
	switch c := raw.(type) {
	case *unitConn:
		spoil(c.fullConn)
	case *borrowed:
		c.spoilt = true
	}
}
