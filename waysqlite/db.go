package waysqlite

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/history"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// Tx is a unit of work on SQLite.
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
	// Prefix begins the name of every table; empty means "waybill_".
	Prefix string
	// Normal sets synchronous=NORMAL: commits are two to three times as fast,
	// and the last of them may be lost with the power, messages and all.
	Normal bool
	// BusyTimeout is how long a transaction waits for another one that writes,
	// of this process or another; zero means 10 s.
	BusyTimeout time.Duration
	// Retention is how long the inbox remembers; zero means 30 days. A message
	// older than that is not handled.
	Retention time.Duration
	// MustExist makes Open fail instead of creating the file.
	MustExist bool
	// ReadOnly refuses every write.
	ReadOnly bool
}

const (
	defaultBusy      = 10 * time.Second
	defaultPrefix    = "waybill_"
	defaultRetention = 30 * 24 * time.Hour
)

//go:embed sql
var sqlFiles embed.FS

// A DB is one SQLite file. It is safe for concurrent use.
type DB struct {
	operator

	writer, reader *sql.DB
	path           string
	prefix         string
	retention      time.Duration
	busy           time.Duration // the longest wait for the writer
	owned          bool          // Close closes the pools
	wakes          sqlcore.Wakes
	retaining      sqlcore.Retention
	retries        sqlcore.Wakes // of the retry queues

	outboxSQL, failedSQL, inboxSQL, queueSQL, uniqueSQL, retrySQL, scheduleSQL, adminSQL, historySQL, migrateSQL sqlfile.Set
	// retryQueueSQL is queueSQL for the table of the retry queues.
	retryQueueSQL sqlfile.Set

	kept  statements  // of the writer
	ready atomic.Bool // the schema was checked

	mu         sync.Mutex
	leaders    int // relays of this process
	leaderLock *fileLock
	cursors    map[int64]cursor // by transport
	claimed    map[part]bool    // parts with a claim that is not settled
}

// Open opens the file at path, creating it unless cfg says otherwise. It does
// not create tables: see SchemaUp.
func Open(ctx context.Context, path string, cfg Config) (*DB, error) {
	if path == "" {
		return nil, errors.New("waysqlite: the path of the database is empty")
	}
	path = filepath.Clean(path)
	if strings.Contains(path, ":memory:") {
		return nil, errors.New("waysqlite: an in-memory database is gone with its connection: use a file, or package memory")
	}
	if err := checkFile(path, cfg.MustExist); err != nil {
		return nil, err
	}
	if cfg.BusyTimeout < 0 || cfg.Retention < 0 {
		return nil, fmt.Errorf("waysqlite: negative duration in %+v", cfg)
	}
	writer, err := sql.Open("sqlite", dsn(path, cfg, false))
	if err != nil {
		return nil, fmt.Errorf("waysqlite: open %s: %w", path, err)
	}
	writer.SetMaxOpenConns(1)
	reader, err := sql.Open("sqlite", dsn(path, cfg, true))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("waysqlite: open %s: %w", path, err), writer.Close())
	}
	reader.SetMaxOpenConns(4)
	db, err := newDB(ctx, writer, reader, cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("waysqlite: open %s: %w", path, err), writer.Close(), reader.Close())
	}
	db.owned = true
	return db, nil
}

// New uses a pool of the caller's own, which Close leaves open. It must be
// limited to one connection, and that must be in WAL mode and begin its
// transactions immediately (_txlock=immediate). New checks the limit and the mode. A unit
// of work holds the connection: in its context the reads of the DB, too, are refused with
// waybill.ErrNestedTransaction.
func New(pool *sql.DB, cfg Config) (*DB, error) {
	if pool == nil {
		return nil, errors.New("waysqlite: New needs a pool")
	}
	if n := pool.Stats().MaxOpenConnections; n != 1 {
		return nil, fmt.Errorf("waysqlite: the pool may open %d connections, call SetMaxOpenConns(1): SQLite has one writer", n)
	}
	return newDB(context.Background(), pool, pool, cfg)
}

func newDB(ctx context.Context, writer, reader *sql.DB, cfg Config) (*DB, error) {
	prefix := cmp.Or(cfg.Prefix, defaultPrefix)
	if !sqlfile.ValidPrefix(prefix) {
		return nil, badPrefix(prefix)
	}
	db := &DB{
		writer: writer, reader: reader, prefix: prefix, retention: cmp.Or(cfg.Retention, defaultRetention), busy: cmp.Or(cfg.BusyTimeout, defaultBusy),
		cursors: map[int64]cursor{}, claimed: map[part]bool{}, kept: statements{of: map[string]*sql.Stmt{}},
	}
	db.operator = sqlcore.NewOperator(db.change, db.dispatchAgain, &db.retries)
	for name, set := range map[string]*sqlfile.Set{"outbox": &db.outboxSQL, "failed": &db.failedSQL, "inbox": &db.inboxSQL, "queue": &db.queueSQL, "unique": &db.uniqueSQL, "retry": &db.retrySQL, "schedule": &db.scheduleSQL, "admin": &db.adminSQL, "history": &db.historySQL, "migrate": &db.migrateSQL} {
		*set = mustNamed(name, prefix)
	}
	db.retryQueueSQL = mustNamed("queue", prefix, "waybill_queue", "waybill_retry")
	var mode string
	if err := writer.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return nil, translate(err)
	}
	if !strings.EqualFold(mode, "wal") {
		return nil, fmt.Errorf("journal_mode is %s, waybill needs WAL", mode)
	}
	var seq int
	var name string
	if err := writer.QueryRowContext(ctx, "PRAGMA database_list").Scan(&seq, &name, &db.path); err != nil {
		return nil, translate(err)
	}
	return db, nil
}

// mustNamed returns the statements of an embedded file, with replaced words such as the
// names of tables: pairs of an old and a new one.
func mustNamed(file, prefix string, replaced ...string) sqlfile.Set {
	return sqlfile.MustRead(sqlFiles, file, rewrite(prefix), replaced...)
}

func rewrite(prefix string) func(text string) string {
	return func(text string) string { return sqlfile.Rewrite(text, prefix) }
}

func badPrefix(prefix string) error {
	return fmt.Errorf("waysqlite: table prefix %q: use lower case letters, digits and '_'", prefix)
}

// checkFile makes a wrong path an error that says which part of it is wrong. It creates a
// missing file for its owner alone, because it has the bodies of messages; SQLite gives its
// other files the same mode.
func checkFile(path string, mustExist bool) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("waysqlite: %s is a directory, want a file", path)
	case err == nil:
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("waysqlite: %w", err)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("waysqlite: database %s: the directory %s does not exist", path, filepath.Dir(path))
	}
	if mustExist {
		return fmt.Errorf("waysqlite: there is no database at %s: check the path, or create it with `waybill schema up --database %s`", path, dsnOf(path))
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("waysqlite: %w", err)
	}
	return f.Close()
}

// dsnOf returns the DSN of the file at path, as the command line takes it.
func dsnOf(path string) string {
	escaped := (&url.URL{Path: path}).EscapedPath()
	if filepath.IsAbs(path) || strings.HasPrefix(path, "../") {
		return "sqlite://" + escaped
	}
	return "sqlite://./" + escaped
}

func dsn(path string, cfg Config, readOnly bool) string {
	q := url.Values{}
	if !readOnly {
		q.Set("_txlock", "immediate")
	}
	synchronous := "FULL"
	if cfg.Normal {
		synchronous = "NORMAL"
	}
	busy := cmp.Or(cfg.BusyTimeout, defaultBusy).Milliseconds()
	q["_pragma"] = []string{
		"busy_timeout(" + strconv.FormatInt(min(busy, math.MaxInt32), 10) + ")", // SQLite takes more for zero
		"journal_mode(WAL)",
		"synchronous(" + synchronous + ")",
		"foreign_keys(1)",
	}
	if readOnly || cfg.ReadOnly {
		q["_pragma"] = append(q["_pragma"], "query_only(1)")
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// SQL returns the pool that writes: one connection, so an open transaction on it
// holds up every other writer of this process.
func (db *DB) SQL() *sql.DB { return db.writer }

// ReadSQL returns the pool for queries, which cannot write.
func (db *DB) ReadSQL() *sql.DB { return db.reader }

// Path returns the file's absolute path.
func (db *DB) Path() string { return db.path }

// Close closes what Open opened. Relays and workers must have ended.
func (db *DB) Close() error {
	db.kept.close()
	if !db.owned {
		return nil
	}
	return errors.Join(db.reader.Close(), db.writer.Close())
}

func micros(t int64) time.Time { return time.UnixMicro(t).UTC() }

func microsOrNil(t sql.NullInt64) *time.Time {
	if !t.Valid {
		return nil
	}
	at := micros(t.Int64)
	return &at
}
