package waypg

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/uuid/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// Tx is a unit of work on PostgreSQL.
type Tx = outbox.Tx[pgx.Tx]

var (
	_ outbox.Writer[pgx.Tx] = (*DB)(nil)
	_ outbox.Store          = (*DB)(nil)
	_ inbox.Store[pgx.Tx]   = (*DB)(nil)
	_ inbox.Log             = (*DB)(nil)
	_ inbox.Pruner          = (*DB)(nil)
	_ worker.Inbox          = (*DB)(nil)
	_ admin.Database        = (*DB)(nil)
	_ admin.Retries         = (*DB)(nil)
	_ admin.DeadLetters     = (*DB)(nil)
	_ admin.Sampler         = (*DB)(nil)
	_ admin.Workers         = (*DB)(nil)
	_ admin.Schedules       = (*DB)(nil)
	_ worker.Registry       = (*DB)(nil)
	_ worker.Store          = (*DB)(nil)
	_ history.Store         = (*DB)(nil)
)

// Config tunes a DB. The zero value is fit for production.
type Config struct {
	// Schema is where the tables are. Empty means the first schema of the
	// connection's search path, as it is when the DB is first used.
	Schema string
	// Prefix begins the name of every table and function; empty means "waybill_".
	Prefix string
	// Retention is how long the inbox remembers; zero means 30 days. A message
	// older than that is not handled.
	Retention time.Duration
	// IdleTimeout is how long the process of a relay or worker that holds locks, or of an
	// inbox handler, may be silent before the server ends its session; zero means 30 s. It
	// must be longer than the relay's publish deadline and three heartbeats of its
	// broker together.
	IdleTimeout time.Duration
	// Notify announces commits of units of work, and of queues, to relays and
	// workers of other processes (NOTIFY), and lets those of this one hear of theirs
	// (LISTEN). Each takes a connection besides the pool's. Commits do not wait for it, and
	// relays and workers poll as without it, because an announcement can be lost.
	Notify bool
	// Listen is a connection string for hearing announcements, needed where the
	// pool's connections go through a pooler: it names the server itself. Relays
	// listen when it is set, also without Notify. Empty means where the pool leads.
	Listen string
	// Log receives, once, that commits cannot be announced any more, and that they
	// can again. Nil discards.
	Log *slog.Logger
}

const (
	defaultPrefix    = "waybill_"
	defaultRetention = 30 * 24 * time.Hour
	defaultIdle      = 30 * time.Second

	// queueBuckets is how many dispatch locks the queues share.
	queueBuckets = 64
	// bucketHash is what outbox.Bucket does. The tables record it.
	bucketHash = "sha256-2"
)

//go:embed sql
var sqlFiles embed.FS

// connecting are the statements that name no table.
var connecting = mustNamed("connect", "public", defaultPrefix)

// A DB is waybill's part of one PostgreSQL database. It is safe for concurrent
// use.
type DB struct {
	operator

	pool      *pgxpool.Pool
	prefix    string
	retention time.Duration
	idle      time.Duration
	owned     bool // Close closes the pool
	wakes     sqlcore.Wakes
	retries   sqlcore.Wakes // of retry queues, which may have the names of queues
	due       atomic.Bool   // delayed messages are, as a claim has seen
	promoter  promoter
	longest   atomic.Int64 // the longest delay of a retry so far
	retaining sqlcore.Retention
	schema    string
	self      string    // payload of this DB's announcements
	notifier  *notifier // nil unless commits are announced
	listener  *listener // nil unless relays and workers listen

	mu         sync.Mutex
	catalog    *catalog // nil until the database was reached
	usable     bool     // buckets and transports are up to date
	buckets    int      // of each transport
	transports map[string]int16
	relaying   map[int16]*relaying
	unlisten   func() // ends the listening for queues; nil before the first
	sqlDB      *SQLDB
}

// Open connects to the database that connString names (see pgxpool.ParseConfig)
// with a new pool. Behind a pooler in transaction mode it uses no named
// statements. It does not create tables: see SchemaUp.
func Open(ctx context.Context, connString string, cfg Config) (*DB, error) {
	poolConfig, err := pgxpool.ParseConfig(connString)
	if err != nil {
		return nil, fmt.Errorf("waypg: %w", err) // pgx leaves the password out
	}
	poolConfig.MaxConns = max(poolConfig.MaxConns, minConns)
	conn, err := pgx.ConnectConfig(ctx, poolConfig.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("waypg: %w", translateOpen(err))
	}
	pooled, err := behindPooler(ctx, conn)
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return nil, fmt.Errorf("waypg: %w", translate(err))
	}
	if pooled {
		poolConfig.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, fmt.Errorf("waypg: %w", translate(err))
	}
	db, err := New(pool, cfg)
	if err != nil {
		pool.Close()
		return nil, err
	}
	db.owned = true
	return db, nil
}

// minConns is the least a pool of our own may open: a relay keeps a connection
// for each batch that it publishes.
const minConns = 10

// behindPooler reports whether the session is a pooler's: then the server that
// answers is another process than the one that greeted us.
func behindPooler(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var pid uint32
	err := conn.QueryRow(ctx, connecting.Query("backend"), pgx.QueryExecModeExec).Scan(&pid)
	return pid != conn.PgConn().PID(), err
}

// New uses a pool of the caller's own, which Close leaves open. A relay takes
// one connection of it for each batch it publishes. Behind a pooler in
// transaction mode the pool must not use named statements: set
// DefaultQueryExecMode to pgx.QueryExecModeExec.
func New(pool *pgxpool.Pool, cfg Config) (*DB, error) {
	if pool == nil {
		return nil, errors.New("waypg: New needs a pool")
	}
	prefix := cmp.Or(cfg.Prefix, defaultPrefix)
	if err := checkNames(cmp.Or(cfg.Schema, "public"), prefix); err != nil {
		return nil, err
	}
	if cfg.Retention < 0 || cfg.IdleTimeout < 0 {
		return nil, fmt.Errorf("waypg: negative duration: Retention %v, IdleTimeout %v", cfg.Retention, cfg.IdleTimeout)
	}
	db := &DB{
		pool: pool, prefix: prefix, schema: cfg.Schema,
		retention: cmp.Or(cfg.Retention, defaultRetention), idle: cmp.Or(cfg.IdleTimeout, defaultIdle),
		transports: map[string]int16{}, relaying: map[int16]*relaying{},
	}
	db.operator = sqlcore.NewOperator(db.change, db.dispatchAgain, &db.retries)
	if err := db.setUpWaking(cfg); err != nil {
		return nil, err
	}
	return db, nil
}

// setUpWaking prepares what cfg says of commits in other processes. It connects
// to nothing.
func (db *DB) setUpWaking(cfg Config) error {
	db.self = uuid.Must(uuid.NewV4()).String()
	if cfg.Notify {
		log := cfg.Log
		if log == nil {
			log = slog.New(slog.DiscardHandler)
		}
		db.notifier = newNotifier(db, log)
	}
	if cfg.Notify || cfg.Listen != "" {
		db.listener = &listener{db: db, heartbeat: listenHeartbeat}
	}
	if cfg.Listen != "" {
		to, err := pgxpool.ParseConfig(cfg.Listen) // which knows the options of Open's, too
		if err != nil {
			return fmt.Errorf("waypg: Listen: %w", err) // pgx leaves the password out
		}
		db.listener.to = to.ConnConfig
	}
	return nil
}

// Pool returns the pool.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// SQL returns the outbox and inbox for transactions of database/sql, on
// connections of the same pool.
func (db *DB) SQL() *SQLDB {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.sqlDB == nil {
		db.sqlDB = &SQLDB{DB: db, pool: stdlib.OpenDBFromPool(db.pool)}
	}
	return db.sqlDB
}

// Close sends pending announcements, for three seconds at most, and closes the
// pool that Open made. Relays and workers must have ended.
func (db *DB) Close() error {
	db.notifier.close()
	db.mu.Lock()
	sqlDB, unlisten := db.sqlDB, db.unlisten
	db.mu.Unlock()
	if unlisten != nil {
		unlisten()
	}
	var err error
	if sqlDB != nil {
		err = sqlDB.pool.Close()
	}
	if db.owned {
		db.pool.Close()
	}
	return err
}

// hintRows hints at rows that were committed, in this process and to others.
func (db *DB) hintRows(rows []outbox.Row) {
	db.wakes.HintRows(rows)
	for _, row := range rows {
		if row.Queue != "" {
			db.notifier.hint(queuePrefix + row.Queue)
		} else {
			db.notifier.hint(row.Transport)
		}
	}
}

// hint is hintRows for rows that came back to a transport.
func (db *DB) hint(transport string) {
	db.wakes.Hint(transport)
	db.notifier.hint(transport)
}

// An SQLDB is a DB for transactions of database/sql. It is safe for concurrent
// use.
type SQLDB struct {
	*DB
	pool *sql.DB
}

var (
	_ outbox.Writer[*sql.Tx] = (*SQLDB)(nil)
	_ inbox.Store[*sql.Tx]   = (*SQLDB)(nil)
)

// Pool returns the pool as one of database/sql.
func (s *SQLDB) Pool() *sql.DB { return s.pool }
