package waymysql

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sqlcore"
	"github.com/waybill-go/waybill/internal/sqlfile"
	"github.com/waybill-go/waybill/outbox"
)

// Tx is a unit of work on MySQL or MariaDB.
type Tx = outbox.Tx[*sql.Tx]

var (
	_ outbox.Writer[*sql.Tx] = (*DB)(nil)
	_ outbox.IdleStore       = (*DB)(nil)
	_ outbox.Reporter        = (*DB)(nil)
	_ outbox.RouteStore      = (*DB)(nil)
	_ outbox.FailureStore    = (*DB)(nil)
	_ inbox.Grouper[*sql.Tx] = (*DB)(nil)
	_ inbox.Log              = (*DB)(nil)
	_ admin.Database         = (*DB)(nil)
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
	// IdleTimeout is how long a relay that holds rows may be silent before the
	// server ends its session, in whole seconds; zero means 30 s. It must be longer
	// than the relay's publish deadline and three heartbeats of its broker together.
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
	cfg       *mysql.Config
	pool      *sql.DB // for single statements and short transactions
	units     *sql.DB // for units of work: autocommit is off
	prefix    string
	retention time.Duration
	idle      time.Duration
	schema    string

	outbox, dispatching, claiming, inbox, queue, admin, failed, migrating, rebucketing sqlfile.Set

	usual    rowSize      // of an outbox's rows
	longest  atomic.Int64 // delay of a retry that this process has written
	promoter promoter
	wakes    sqlcore.Wakes

	mu        sync.Mutex
	relays    *sql.DB // for claims, once there is one: sessions that end when they are silent
	flavor    flavor  // once the server was asked
	usable    bool    // the tables were checked
	buckets   int     // of a transport, as the tables recorded it when they were read last
	writable  bool    // the server's settings were checked
	unwritten bool    // it shows commits before it has written them; set with writable

	transports map[string]int16
	relayed    map[int16]*relayed
}

// Open prepares to use the database that dsn names, in the form of
// github.com/go-sql-driver/mysql, with private pools. It does not create
// tables: see SchemaUp. The first use connects.
func Open(ctx context.Context, dsn string, cfg Config) (*DB, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("waymysql: the DSN is not of the form user:password@tcp(host:port)/database") // the driver's words may have the password
	}
	c.Logger = &mysql.NopLogger{} // errors are returned as well
	db, err := New(c, cfg)
	if err != nil {
		return nil, err
	}
	if err := db.pool.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("waymysql: %w", translate(err)), db.Close())
	}
	return db, nil
}

// New prepares to use the database that c names, for connections that need more
// than a DSN can say, such as TLS or a dialer. c is not kept.
func New(c *mysql.Config, cfg Config) (*DB, error) {
	prefix, schema := cmp.Or(cfg.Prefix, defaultPrefix), cmp.Or(cfg.Schema, c.DBName)
	switch {
	case !sqlfile.ValidPrefix(prefix):
		return nil, badPrefix(prefix)
	case schema == "":
		return nil, errors.New("waymysql: neither the connection nor the configuration names a database")
	case !schemaForm.MatchString(schema):
		return nil, badSchema(schema)
	case cfg.Retention < 0 || cfg.IdleTimeout < 0 || cfg.MaxConns < 0:
		return nil, fmt.Errorf("waymysql: negative: Retention %v, IdleTimeout %v, MaxConns %d", cfg.Retention, cfg.IdleTimeout, cfg.MaxConns)
	case cfg.IdleTimeout%time.Second != 0:
		return nil, fmt.Errorf("waymysql: IdleTimeout %v: the server counts whole seconds", cfg.IdleTimeout)
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
	db := &DB{
		cfg: c, prefix: prefix, schema: schema,
		retention: cmp.Or(cfg.Retention, defaultRetention), idle: cmp.Or(cfg.IdleTimeout, defaultIdle),
		transports: map[string]int16{}, relayed: map[int16]*relayed{},
	}
	var err error
	for name, set := range map[string]*sqlfile.Set{
		"outbox": &db.outbox, "dispatch": &db.dispatching, "claim": &db.claiming, "inbox": &db.inbox, "queue": &db.queue, "admin": &db.admin,
		"failed": &db.failed, "migrate": &db.migrating, "rebucket": &db.rebucketing,
	} {
		if *set, err = namedSQL(name, schema, prefix); err != nil {
			return nil, err
		}
	}
	// Statements outside of a transaction commit, whatever the server's default is.
	if db.pool, err = db.connect(map[string]string{"autocommit": "1"}); err != nil {
		return nil, err
	}
	guarded, err := db.connector(map[string]string{"autocommit": "0"})
	if err != nil {
		return nil, err
	}
	db.units = pooled(guardedConnector{guarded})
	db.units.SetMaxOpenConns(cmp.Or(cfg.MaxConns, defaultConns))
	return db, nil
}

// namedSQL reads a file of named statements.
func namedSQL(file, schema, prefix string) (sqlfile.Set, error) {
	text, err := sqlFiles.ReadFile("sql/" + file + ".sql")
	if err != nil {
		return sqlfile.Set{}, err
	}
	return sqlfile.MustParse(file+".sql", qualify(string(text), schema, prefix)), nil
}

// connect returns a pool whose sessions have settings.
func (db *DB) connect(settings map[string]string) (*sql.DB, error) {
	c, err := db.connector(settings)
	if err != nil {
		return nil, err
	}
	return pooled(c), nil
}

// isolations are the names of one variable.
var isolations = map[string]string{"tx_isolation": "transaction_isolation", "transaction_isolation": "tx_isolation"}

func (db *DB) connector(settings map[string]string) (driver.Connector, error) {
	c := db.cfg.Clone()
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	settings = maps.Clone(settings)
	settings["completion_type"] = "'NO_CHAIN'" // or COMMIT begins another transaction, or ends the session
	// The server does not tell capitals apart, and takes the parameters in any order.
	maps.DeleteFunc(c.Params, func(name, _ string) bool {
		name = strings.ToLower(name)
		_, isolation := settings[isolations[name]]
		_, ours := settings[name]
		return ours || isolation
	})
	maps.Copy(c.Params, settings)
	if _, err := mysql.NewConnector(c); err != nil {
		return nil, fmt.Errorf("waymysql: %w", err)
	}
	return connector{c}, nil
}

// A connector gives each connection a private configuration. The driver's shares
// one, and removes TLS from it when a server has none that need not have it: that
// would be a race, and plain for all connections that follow.
type connector struct{ cfg *mysql.Config }

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	one, err := mysql.NewConnector(c.cfg) // which copies it
	if err != nil {
		return nil, err
	}
	return one.Connect(ctx)
}

// Driver implements driver.Connector.
func (connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

func pooled(connector driver.Connector) *sql.DB {
	pool := sql.OpenDB(connector)
	pool.SetMaxIdleConns(defaultConns) // database/sql keeps 2, and would connect all the time
	pool.SetConnMaxIdleTime(time.Minute)
	return pool
}

// Pool returns a pool of the same database, for statements and transactions of
// the application's own.
func (db *DB) Pool() *sql.DB { return db.pool }

// Retention returns how long the inbox remembers.
func (db *DB) Retention() time.Duration { return db.retention }

// IdleTimeout implements outbox.IdleStore.
func (db *DB) IdleTimeout() time.Duration { return db.idle }

// Close closes the connections. Relays and workers must have ended.
func (db *DB) Close() error {
	db.mu.Lock()
	relays := db.relays
	db.mu.Unlock()
	err := errors.Join(db.pool.Close(), db.units.Close())
	if relays != nil {
		err = errors.Join(err, relays.Close())
	}
	return err
}

// A flavor is a server's name and version, as far as statements differ.
type flavor struct {
	mariaDB bool
	version [3]int
	// isolation is the name of the variable of a session's isolation level.
	isolation string
}

func (f flavor) String() string {
	name := "MySQL"
	if f.mariaDB {
		name = "MariaDB"
	}
	return fmt.Sprintf("%s %d.%d.%d", name, f.version[0], f.version[1], f.version[2])
}

// parseFlavor reads a server's version, such as "8.0.36" or
// "10.11.19-MariaDB-0+deb12u1".
func parseFlavor(version string) (flavor, error) {
	f := flavor{mariaDB: strings.Contains(strings.ToLower(version), "mariadb"), isolation: "transaction_isolation"}
	number, _, _ := strings.Cut(strings.TrimPrefix(version, "5.5.5-"), "-") // how MariaDB greets old clients
	for i, part := range strings.SplitN(number, ".", 3) {
		n, err := strconv.Atoi(part)
		if err != nil {
			return flavor{}, fmt.Errorf("waymysql: the server's version is %q: want one like 8.0.36 or 10.11.6-MariaDB", version)
		}
		f.version[i] = n
	}
	oldest := [3]int{8, 0, 19}
	if f.mariaDB {
		oldest = [3]int{10, 6, 0}
		if f.before(11, 1, 1) {
			f.isolation = "tx_isolation"
		}
	}
	if f.before(oldest[0], oldest[1], oldest[2]) {
		return flavor{}, fmt.Errorf("waymysql: the server is %v: want MySQL 8.0.19 or later, or MariaDB 10.6 or later, which can skip locked rows", f)
	}
	return f, nil
}

func (f flavor) before(major, minor, patch int) bool {
	for i, n := range []int{major, minor, patch} {
		if f.version[i] != n {
			return f.version[i] < n
		}
	}
	return false
}

// server asks for the server's version once.
func (db *DB) server(ctx context.Context) (flavor, error) {
	db.mu.Lock()
	known := db.flavor
	db.mu.Unlock()
	if known != (flavor{}) {
		return known, nil
	}
	var version string
	if err := db.pool.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return flavor{}, translate(err)
	}
	found, err := parseFlavor(version)
	if err != nil {
		return flavor{}, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.flavor = found
	return found, nil
}

// ready makes sure that this version can work with the tables. It looks once.
func (db *DB) ready(ctx context.Context) error {
	db.mu.Lock()
	usable := db.usable
	db.mu.Unlock()
	if usable {
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
	}
	db.buckets, db.usable = n, true
}

// checked reports whether tables and server were.
func (db *DB) checked() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.buckets > 0 && db.writable
}

func (db *DB) isMariaDB() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.flavor.mariaDB
}

// A settingError says which setting of the server must be another.
type settingError struct{ name, value, want, why string }

func (e *settingError) Error() string {
	return fmt.Sprintf("waymysql: the server has %s = %s, want %s: %s", e.name, e.value, e.want, e.why)
}

// writer makes sure that the server's settings keep the outbox's promises. It looks
// once; readers do not need it.
func (db *DB) writer(ctx context.Context) error {
	if err := db.ready(ctx); err != nil {
		return err
	}
	db.mu.Lock()
	writable := db.writable
	db.mu.Unlock()
	if writable {
		return nil
	}
	rows, err := db.pool.QueryContext(ctx, db.outbox.Query("server"))
	if err != nil {
		return translate(err)
	}
	defer rows.Close()
	settings := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return err
		}
		settings[strings.ToLower(name)] = value
	}
	if err := rows.Err(); err != nil {
		return translate(err)
	}
	if err := checkSettings(settings, db.idle); err != nil {
		return err
	}
	unwritten := !strings.EqualFold(settings["log_bin"], "ON") || !db.logsAll(ctx)
	db.mu.Lock()
	defer db.mu.Unlock()
	db.writable, db.unwritten = true, unwritten
	return nil
}

// logsAll reports whether the binary log certainly has every database.
func (db *DB) logsAll(ctx context.Context) bool {
	for _, ask := range []string{"SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"} { // of MySQL since 8.2
		rows, err := db.pool.QueryContext(ctx, ask)
		if err != nil {
			continue
		}
		defer rows.Close()
		names, _ := rows.Columns()
		values, to := make([]sql.NullString, len(names)), make([]any, len(names))
		for i := range values {
			to[i] = &values[i]
		}
		// File, position, and the two lists of databases.
		return rows.Next() && rows.Scan(to...) == nil && len(values) >= 4 && values[2].String == "" && values[3].String == ""
	}
	return false
}

// showsUnwritten reports whether the server shows commits that it would forget if
// it were killed. With a binary log it shows commits that are in the log.
func (db *DB) showsUnwritten() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.unwritten
}

// checkSettings refuses servers on which keys would lose their order, commits
// would not be durable, or relays their rows.
func checkSettings(settings map[string]string, idle time.Duration) error {
	for _, no := range []struct{ name, value, want, why string }{
		{"wsrep_on", "ON", "OFF", "on a Galera cluster neither locks nor ids are those of all nodes, so keys would lose their order"},
		{"read_only", "ON", "OFF", "connect to the primary"},
		{"super_read_only", "ON", "OFF", "connect to the primary"},
		{"innodb_read_only", "ON", "OFF", "connect to the primary"},
		{"innodb_flush_log_at_trx_commit", "0", "1", "a server that is killed forgets commits whose messages have been sent"},
	} {
		if strings.EqualFold(settings[no.name], no.value) {
			return &settingError{no.name, settings[no.name], no.want, no.why}
		}
	}
	if by := settings["auto_increment_increment"]; by != "1" {
		return &settingError{"auto_increment_increment", by, "1", "with several servers that give ids, ids are not in commit order"}
	}
	// Unlike wait_timeout these are not the relay's to set: an operator wants them.
	for _, name := range []string{"idle_transaction_timeout", "idle_write_transaction_timeout", "idle_readonly_transaction_timeout", "max_statement_time"} {
		seconds, err := strconv.ParseFloat(cmp.Or(settings[name], "0"), 64)
		if err == nil && seconds > 0 && seconds < idle.Seconds() {
			return &settingError{name, settings[name], fmt.Sprintf("0 or at least %v, for the user waybill connects as (a relay's idle timeout)", idle.Seconds()), "it would end a relay's transaction while it publishes"}
		}
	}
	return nil
}

// relayPool returns the pool for claims, whose sessions the server ends when
// they are silent, and when they do not read its answers.
func (db *DB) relayPool(ctx context.Context) (*sql.DB, error) {
	f, err := db.server(ctx)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.relays == nil {
		idle := strconv.Itoa(int(db.idle.Seconds()))
		settings := map[string]string{
			f.isolation: "'READ-COMMITTED'", "wait_timeout": idle, "net_write_timeout": idle, "net_read_timeout": idle, "innodb_lock_wait_timeout": idle,
			"autocommit": "1",
			// The statistics of an outbox are always wrong: look at the index instead.
			"eq_range_index_dive_limit": "0",
		}
		if !f.mariaDB {
			settings["information_schema_stats_expiry"] = "0" // or the table's next id is that of yesterday
		}
		db.relays, err = db.connect(settings)
		if err != nil {
			return nil, err
		}
		db.relays.SetConnMaxIdleTime(db.idle / 2)
	}
	return db.relays, nil
}
