//go:build chaos

package chaos

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // driver pgx

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

// A kind is a database that the campaign runs on.
type kind struct {
	name   string
	start  func(tb testing.TB, settings map[string]string) *testserver.Server
	look   func(address string) (*sql.DB, error)
	open   func(ctx context.Context, address string, idle time.Duration) (service, error)
	serial string // the type of a column that counts by itself
}

var kinds = []kind{
	{"postgres", testserver.StartPostgres, func(address string) (*sql.DB, error) { return sql.Open("pgx", address) }, openPostgres, "bigserial"},
	{"mariadb", testserver.StartMariaDB, func(address string) (*sql.DB, error) {
		cfg, err := mysql.Config(config.MustParseDSN(address))
		if err != nil {
			return nil, err
		}
		return sql.Open("mysql", cfg.FormatDSN())
	}, openMariaDB, "bigint AUTO_INCREMENT"},
}

func kindOf(name string) kind {
	for _, on := range kinds {
		if on.name == name {
			return on
		}
	}
	panic("chaos: no database " + name)
}

// A service is the database of a process of the campaign, whatever type its
// transactions have.
type service interface {
	outbox.Store
	SchemaUp(ctx context.Context) (admin.SchemaStatus, error)
	// application returns functions that run fn in a unit of work, and in a
	// transaction of the application.
	application() (unit, own transactor, err error)
	handle(bus *waybill.Bus, fn func(ctx context.Context, tx tx, m counted) error, opts ...inbox.Option)
	suppressed(ctx context.Context, id waybill.MessageID)
	worker.Store
	Failed(ctx context.Context, q admin.FailedQuery) ([]admin.FailedMessage, error)
	RetryFailed(ctx context.Context, numbers ...int64) (int, error)
	Close() error
}

type transactor func(ctx context.Context, fn func(ctx context.Context, tx tx, dispatch dispatch) error) error

type dispatch func(ctx context.Context, msgs ...any) ([]waybill.MessageID, error)

// A tx is a transaction whose statements have ? for their arguments.
type tx interface {
	exec(ctx context.Context, statement string, args ...any) error
	number(ctx context.Context, query string, args ...any) (int, error)
}

type pgTx struct{ pgx.Tx }

func (t pgTx) exec(ctx context.Context, statement string, args ...any) error {
	_, err := t.Exec(ctx, numbered(statement), args...)
	return err
}

func (t pgTx) number(ctx context.Context, query string, args ...any) (n int, err error) {
	return n, t.QueryRow(ctx, numbered(query), args...).Scan(&n)
}

// numbered writes the arguments of a statement as PostgreSQL does.
func numbered(statement string) string {
	parts := strings.Split(statement, "?")
	for i := range parts[:len(parts)-1] {
		parts[i] += "$" + strconv.Itoa(i+1)
	}
	return strings.Join(parts, "")
}

type sqlTx struct{ *sql.Tx }

func (t sqlTx) exec(ctx context.Context, statement string, args ...any) error {
	_, err := t.ExecContext(ctx, statement, args...)
	return err
}

func (t sqlTx) number(ctx context.Context, query string, args ...any) (n int, err error) {
	return n, t.QueryRowContext(ctx, query, args...).Scan(&n)
}

// application makes transactors of an outbox whose transactions are TX.
func application[TX any](w outbox.Writer[TX], wrap func(TX) tx, begin func(ctx context.Context, fn func(tx TX) error) error) (unit, own transactor, err error) {
	out, err := outbox.New(w, outbox.Config{To: transport})
	unit = func(ctx context.Context, fn func(ctx context.Context, tx tx, dispatch dispatch) error) error {
		return out.InTx(ctx, func(ctx context.Context, t outbox.Tx[TX]) error {
			return fn(ctx, wrap(t.SQL()), func(ctx context.Context, msgs ...any) ([]waybill.MessageID, error) {
				return out.DispatchAll(ctx, t.SQL(), msgs...)
			})
		})
	}
	own = func(ctx context.Context, fn func(ctx context.Context, tx tx, dispatch dispatch) error) error {
		done := false
		err := begin(ctx, func(t TX) error {
			err := fn(ctx, wrap(t), func(ctx context.Context, msgs ...any) ([]waybill.MessageID, error) {
				return out.DispatchAll(ctx, t, msgs...)
			})
			done = err == nil
			return err
		})
		if err != nil && done {
			return fmt.Errorf("%w: %w", waybill.ErrCommitUnknown, err) // for all that we can tell
		}
		return err
	}
	return unit, own, err
}

type postgres struct{ *waypg.DB }

func openPostgres(ctx context.Context, address string, idle time.Duration) (service, error) {
	db, err := waypg.Open(ctx, address, waypg.Config{IdleTimeout: idle})
	return postgres{db}, err
}

func (db postgres) application() (unit, own transactor, err error) {
	return application(db.DB, func(t pgx.Tx) tx { return pgTx{t} }, func(ctx context.Context, fn func(tx pgx.Tx) error) error {
		return pgx.BeginFunc(ctx, db.Pool(), fn)
	})
}

func (db postgres) handle(bus *waybill.Bus, fn func(ctx context.Context, tx tx, m counted) error, opts ...inbox.Option) {
	inbox.Handle(bus, db.DB, "count", func(ctx context.Context, t pgx.Tx, m counted) error { return fn(ctx, pgTx{t}, m) }, opts...)
}

func (db postgres) suppressed(ctx context.Context, id waybill.MessageID) {
	_, _ = db.Pool().Exec(ctx, "INSERT INTO suppressed (message_id) VALUES ($1)", id.String())
}

type mariadb struct{ *waymysql.DB }

func openMariaDB(ctx context.Context, address string, idle time.Duration) (service, error) {
	db, err := mysql.Open(ctx, config.MustParseDSN(address), waymysql.Config{IdleTimeout: idle})
	return mariadb{db}, err
}

func (db mariadb) application() (unit, own transactor, err error) {
	return application(db.DB, func(t *sql.Tx) tx { return sqlTx{t} }, func(ctx context.Context, fn func(tx *sql.Tx) error) error {
		t, err := db.Pool().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = t.Rollback() }() // after a commit it does nothing
		if err := fn(t); err != nil {
			return err
		}
		return t.Commit()
	})
}

func (db mariadb) handle(bus *waybill.Bus, fn func(ctx context.Context, tx tx, m counted) error, opts ...inbox.Option) {
	inbox.Handle(bus, db.DB, "count", func(ctx context.Context, t *sql.Tx, m counted) error { return fn(ctx, sqlTx{t}, m) }, opts...)
}

func (db mariadb) suppressed(ctx context.Context, id waybill.MessageID) {
	_, _ = db.Pool().ExecContext(ctx, "INSERT INTO suppressed (message_id) VALUES (?)", id.String())
}

// tables are the campaign's tables, on each kind of database.
func tables(serial string, keys []string) []string {
	all := []string{
		"CREATE TABLE counts (k varchar(64) PRIMARY KEY, n int NOT NULL)",
		"CREATE TABLE committed (i " + serial + " PRIMARY KEY, k varchar(64) NOT NULL, n int NOT NULL, message_id char(36) NOT NULL, attempt varchar(64) NOT NULL)",
		// Without a unique index on purpose: a second effect must be visible.
		"CREATE TABLE handled (i " + serial + " PRIMARY KEY, k varchar(64) NOT NULL, n int NOT NULL, message_id char(36) NOT NULL, attempt varchar(64) NOT NULL, at bigint NOT NULL, failures int NOT NULL)",
		"CREATE TABLE suppressed (message_id char(36) NOT NULL)",
		"CREATE TABLE mended (i " + serial + " PRIMARY KEY)",
	}
	for _, key := range keys {
		all = append(all, "INSERT INTO counts VALUES ('"+key+"', 0)")
	}
	return all
}
