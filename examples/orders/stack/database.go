// Package stack opens the databases and brokers of the programs: SQLite files, or
// PostgreSQL or MySQL and RabbitMQ. A service of yours runs on one of them and opens
// it in its main.
package stack

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/waysqlite"
	"github.com/waybill-go/waybill/worker"
)

// A Database is a service's own, with its outbox and its inbox. Each kind gives
// the service a *sql.Tx.
type Database struct {
	store
	pool     *sql.DB // for statements outside of units of work
	numbered bool    // arguments are $1, $2 and not ?
}

type store interface {
	outbox.Writer[*sql.Tx]
	outbox.Store
	inbox.Store[*sql.Tx]
	worker.Inbox
	SchemaUp(ctx context.Context) (admin.SchemaStatus, error)
	io.Closer
}

// OpenDatabase opens sqlite://PATH, postgres://USER@HOST/NAME or
// mysql://USER@HOST/NAME, and creates waybill's tables. In production `waybill
// schema up` does that, when deploying.
func OpenDatabase(ctx context.Context, dsn string) (*Database, error) {
	db, err := open(ctx, dsn)
	if err != nil {
		return nil, err
	}
	if _, err := db.SchemaUp(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

var errDatabase = errors.New("--database: want sqlite://PATH, postgres://USER@HOST/NAME or mysql://USER@HOST/NAME")

func open(ctx context.Context, dsn string) (*Database, error) {
	switch scheme, path, _ := strings.Cut(dsn, "://"); scheme {
	case "sqlite":
		db, err := waysqlite.Open(ctx, path, waysqlite.Config{})
		if err != nil {
			return nil, err
		}
		return &Database{store: db, pool: db.SQL()}, nil
	case "postgres":
		db, err := waypg.Open(ctx, dsn, waypg.Config{})
		if err != nil {
			return nil, err
		}
		s := db.SQL() // without SQL it would be for pgx.Tx
		return &Database{store: s, pool: s.Pool(), numbered: true}, nil
	case "mysql", "mariadb":
		u, err := url.Parse(dsn)
		if err != nil {
			return nil, errDatabase // err has the password in it
		}
		cfg := mysql.NewConfig()
		cfg.User, cfg.Net, cfg.Addr, cfg.DBName = u.User.Username(), "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
		cfg.Passwd, _ = u.User.Password()
		db, err := waymysql.OpenConfig(cfg, waymysql.Config{})
		if err != nil {
			return nil, err
		}
		return &Database{store: db, pool: db.Pool()}, nil
	}
	return nil, errDatabase
}

// CreateTables runs statements that create tables. MySQL would end a transaction
// for each of them, so they are in none.
func (db *Database) CreateTables(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := db.pool.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// SQL returns a statement whose arguments are written ? as the database has it.
func (db *Database) SQL(statement string) string {
	if !db.numbered {
		return statement
	}
	var b strings.Builder
	for i, part := range strings.Split(statement, "?") {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(i))
		}
		b.WriteString(part)
	}
	return b.String()
}
