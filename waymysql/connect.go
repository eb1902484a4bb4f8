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
		db.relays, err = db.connect(settings)
		if err != nil {
			return nil, err
		}
		db.relays.SetConnMaxIdleTime(db.idle / 2)
	}
	return db.relays, nil
}
