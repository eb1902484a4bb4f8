package waymysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// sessions open pools of sessions with settings: by connections of waybill's own, or of
// sessions that the caller's pool lends.
type sessions interface {
	open(settings map[string]string, wrap func(driver.Connector) driver.Connector, idle time.Duration) (*sql.DB, error)
}

// connections are sessions of waybill's own.
type connections struct{ cfg *mysql.Config }

// isolations are the names of one variable.
var isolations = map[string]string{"tx_isolation": "transaction_isolation", "transaction_isolation": "tx_isolation"}

// open implements sessions.
func (own connections) open(settings map[string]string, wrap func(driver.Connector) driver.Connector, idle time.Duration) (*sql.DB, error) {
	c := own.cfg.Clone()
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	settings = unchained(settings)
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
	pool := sql.OpenDB(wrap(connector{c}))
	pool.SetMaxIdleConns(defaultConns) // database/sql keeps 2, and would connect all the time
	pool.SetConnMaxIdleTime(idle)
	return pool, nil
}

// unchained returns settings with one more, or COMMIT begins another transaction, or ends
// the session.
func unchained(settings map[string]string) map[string]string {
	settings = maps.Clone(settings)
	settings["completion_type"] = "'NO_CHAIN'"
	return settings
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

func unwrapped(c driver.Connector) driver.Connector { return c }

// silenceLimits are the settings of sessions that the server ends when the client is silent:
// between statements, and in the middle of a statement or its result.
func (db *DB) silenceLimits() map[string]string {
	idle := strconv.Itoa(int(db.idle.Seconds()))
	return map[string]string{"wait_timeout": idle, "net_write_timeout": idle, "net_read_timeout": idle}
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
		settings := db.silenceLimits()
		settings[f.isolation] = "'READ-COMMITTED'"
		settings["innodb_lock_wait_timeout"] = settings["wait_timeout"]
		settings["autocommit"] = "1"
		settings["group_concat_max_len"] = "4194304" // or MariaDB cuts long lists of ids
		// The statistics of an outbox are always wrong: look at the index instead.
		settings["eq_range_index_dive_limit"] = "0"
		if !f.mariaDB {
			settings["information_schema_stats_expiry"] = "0" // or the table's next id is that of yesterday
		}
		db.relays, err = db.sessions.open(settings, unwrapped, db.idle/2)
	}
	return db.relays, err
}
