package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// Tx is a unit of work on MySQL or MariaDB.
type Tx = outbox.Tx[*sql.Tx]

var (
	_ outbox.Writer[*sql.Tx] = (*DB)(nil)
	_ outbox.Store           = (*DB)(nil)
	_ inbox.Store[*sql.Tx]   = (*DB)(nil)
	_ inbox.Log              = (*DB)(nil)
	_ inbox.Pruner           = (*DB)(nil)
	_ worker.Inbox           = (*DB)(nil)
	_ admin.Database         = (*DB)(nil)
	_ admin.Retries          = (*DB)(nil)
	_ admin.DeadLetters      = (*DB)(nil)
	_ admin.Sampler          = (*DB)(nil)
	_ admin.Workers          = (*DB)(nil)
	_ admin.Schedules        = (*DB)(nil)
	_ worker.Registry        = (*DB)(nil)
	_ worker.Store           = (*DB)(nil)
	_ history.Store          = (*DB)(nil)
)

// Config tunes a DB. The zero value is fit for production.
type Config struct {
	// Schema is the database that the tables are in. Empty means the one that the
	// connection names.
	Schema string
	// Prefix begins the name of every table and procedure; empty means "waybill_".
	Prefix string
	// Retention is how long the inbox remembers; zero means 30 days. A message
	// older than that is not handled.
	Retention time.Duration
	// IdleTimeout is how long the process of a relay or worker that holds locks, or of a
	// unit of work, may be silent before the server ends its session, in whole seconds; zero means
	// 30 s. It must be longer than the relay's publish deadline and three heartbeats of its
	// broker together.
	IdleTimeout time.Duration
	// MaxConns bounds the connections of units of work; zero means 32.
	MaxConns int
}

const (
	defaultPrefix    = "waybill_"
	defaultRetention = 30 * 24 * time.Hour
	defaultIdle      = 30 * time.Second
	defaultConns     = 32

	// queueBuckets is how many gates the queues share.
	queueBuckets = 64
	// bucketHash names the function of outbox.Bucket. The tables record it.
	bucketHash = "sha256-2"
)

//go:embed sql
var sqlFiles embed.FS

// A DB is waybill's part of one database. It is safe for concurrent use.
type DB struct {
	operator

	sessions  sessions
	packet    int     // the longest statement of the driver; 0 means that of the server
	pool      *sql.DB // for single statements and short transactions
	units     *sql.DB // for units of work: autocommit is off
	prefix    string
	retention time.Duration
	idle      time.Duration
	schema    string

	outbox, dispatching, claiming, inbox, queue, unique, retry, schedule, admin, failed, migrating, rebucketing, serving, doctor, history sqlfile.Set

	retryQueue sqlfile.Set // queue for the table of the retry queues

	usual    rowSize      // of an outbox's rows
	longest  atomic.Int64 // delay of a retry that this process has written
	promoter promoter
	wakes    sqlcore.Wakes
	retries  sqlcore.Wakes // of retry queues, which may have the names of queues

	retaining sqlcore.Retention
	changed   atomic.Bool // a claim found another server or other tables: see recheck

	mu        sync.Mutex
	relays    *sql.DB // for claims, once there is one: sessions that end when they are silent
	flavor    flavor  // once the server was asked
	maxPacket int     // of the server, in bytes; 0 until then
	buckets   int     // of a transport, as the tables recorded it when they were read last; 0 until then
	writable  bool    // the server's settings were checked
	unwritten bool    // it shows commits before it has written them; set with writable

	transports map[string]int16
	renewals   int // of buckets or transports
	relayed    map[int16]*relayed
}

// Open connects to the database that dsn names, in the form of
// github.com/go-sql-driver/mysql, with private pools. It does not create tables: see
// SchemaUp.
func Open(ctx context.Context, dsn string, cfg Config) (*DB, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("waymysql: the DSN is not of the form user:password@tcp(host:port)/database") // the driver's words may have the password
	}
	c.Logger = &mysql.NopLogger{} // errors are returned as well
	db, err := OpenConfig(c, cfg)
	if err != nil {
		return nil, err
	}
	if err := db.pool.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("waymysql: %w", translateOpen(err)), db.Close())
	}
	return db, nil
}

// OpenConfig is Open for connections that need more than a DSN can say, such as TLS or
// a dialer. The first use connects. c is not kept. New has a pool of the caller's.
func OpenConfig(c *mysql.Config, cfg Config) (*DB, error) {
	schema := cmp.Or(cfg.Schema, c.DBName)
	if schema == "" {
		return nil, errors.New("waymysql: neither the connection nor the configuration names a database")
	}
	c = c.Clone()
	c.DBName = cmp.Or(c.DBName, schema) // some statements want one, although they name it
	c.InterpolateParams = true          // or each statement is three round trips
	c.ClientFoundRows = false           // rows affected are rows changed
	collation := c.Collation
	if !strings.HasPrefix(collation, "utf8mb4_") {
		collation = ""
	}
	if err := c.Apply(mysql.Charset("utf8mb4", collation)); err != nil { // waybill writes and reads UTF-8
		return nil, fmt.Errorf("waymysql: %w", err)
	}
	if c.Logger == nil {
		c.Logger = &mysql.NopLogger{}
	}
	own := connections{c}
	db, err := newDB(own, schema, cfg)
	if err != nil {
		return nil, err
	}
	db.packet = c.MaxAllowedPacket
	// Statements outside of a transaction commit, whatever the server's default is.
	if db.pool, err = own.open(map[string]string{"autocommit": "1"}, unwrapped, time.Minute); err != nil {
		return nil, err
	}
	return db, db.openUnits(cmp.Or(cfg.MaxConns, defaultConns))
}

// newDB returns a DB without pools.
func newDB(of sessions, schema string, cfg Config) (*DB, error) {
	prefix := cmp.Or(cfg.Prefix, defaultPrefix)
	switch err := checkNames(schema, prefix); {
	case err != nil:
		return nil, err
	case cfg.Retention < 0 || cfg.IdleTimeout < 0 || cfg.MaxConns < 0:
		return nil, fmt.Errorf("waymysql: negative: Retention %v, IdleTimeout %v, MaxConns %d", cfg.Retention, cfg.IdleTimeout, cfg.MaxConns)
	case cfg.IdleTimeout%time.Second != 0:
		return nil, fmt.Errorf("waymysql: IdleTimeout %v: the server counts whole seconds", cfg.IdleTimeout)
	}
	db := &DB{
		sessions: of, prefix: prefix, schema: schema,
		retention: cmp.Or(cfg.Retention, defaultRetention), idle: cmp.Or(cfg.IdleTimeout, defaultIdle),
		transports: map[string]int16{}, relayed: map[int16]*relayed{},
	}
	db.operator = sqlcore.NewOperator(db.change, db.dispatchAgain, &db.retries)
	for name, set := range map[string]*sqlfile.Set{
		"outbox": &db.outbox, "dispatch": &db.dispatching, "claim": &db.claiming, "inbox": &db.inbox, "queue": &db.queue, "unique": &db.unique, "retry": &db.retry, "schedule": &db.schedule, "admin": &db.admin,
		"failed": &db.failed, "migrate": &db.migrating, "rebucket": &db.rebucketing, "server": &db.serving, "doctor": &db.doctor, "history": &db.history,
	} {
		*set = mustNamed(name, schema, prefix)
	}
	db.retryQueue = mustNamed("queue", schema, prefix, "app.waybill_queue", "app.waybill_retry")
	return db, nil
}

// openUnits opens the pool for units of work.
func (db *DB) openUnits(most int) (err error) {
	settings := db.silenceLimits()
	settings["autocommit"] = "0"
	db.units, err = db.sessions.open(settings, func(c driver.Connector) driver.Connector { return unitConnector{c} }, db.idle/2)
	if err == nil {
		db.units.SetMaxOpenConns(most)
	}
	return err
}

// mustNamed returns the statements of an embedded file, with replaced words such as the
// names of tables: pairs of an old and a new one.
func mustNamed(file, schema, prefix string, replaced ...string) sqlfile.Set {
	return sqlfile.MustRead(sqlFiles, file, qualify(schema, prefix), replaced...)
}

// Pool returns a pool of the same database, for statements and transactions of
// the application's own: that of New, where it made the DB.
func (db *DB) Pool() *sql.DB { return db.pool }

// Close closes the connections, and leaves those of a pool of the caller's open. Relays and
// workers must have ended.
func (db *DB) Close() error {
	db.mu.Lock()
	relays := db.relays
	db.mu.Unlock()
	err := db.units.Close()
	if !db.borrows() {
		err = errors.Join(err, db.pool.Close())
	}
	if relays != nil {
		err = errors.Join(err, relays.Close())
	}
	return err
}

// ensureSchema makes sure that this version can work with the tables. It checks once.
func (db *DB) ensureSchema(ctx context.Context) error {
	if db.bucketCount() > 0 {
		return nil
	}
	if _, err := db.server(ctx); err != nil {
		return err
	}
	n, err := db.checkSchema(ctx)
	if err != nil {
		return err
	}
	db.setBuckets(n)
	return nil
}

func (db *DB) bucketCount() int {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.buckets
}

// setBuckets takes note of the number of buckets.
func (db *DB) setBuckets(n int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.buckets != n {
		db.relayed = map[int16]*relayed{}
		db.renewals++
	}
	db.buckets = n
}

// checked reports whether tables and server were.
func (db *DB) checked() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.buckets > 0 && db.writable
}
