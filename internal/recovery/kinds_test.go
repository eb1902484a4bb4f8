package recovery

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // driver pgx

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/waypg"
)

// A kind is a database that the campaign runs on.
type kind struct {
	name   string
	start  func(tb testing.TB, settings map[string]string) *testserver.Server
	look   func(address string) (*sql.DB, error)
	serial string // the type of a column that counts by itself
}

var kinds = []kind{
	{"postgres", testserver.StartPostgres, func(address string) (*sql.DB, error) { return sql.Open("pgx", address) }, "bigserial"},
	{"mariadb", testserver.StartMariaDB, func(address string) (*sql.DB, error) {
		cfg, err := mysql.Config(config.MustParseDSN(address))
		if err != nil {
			return nil, err
		}
		return sql.Open("mysql", cfg.FormatDSN())
	}, "bigint AUTO_INCREMENT"},
}

// A service is the database of a process of the campaign.
type service interface {
	SchemaUp(ctx context.Context) (admin.SchemaStatus, error)
	// counter returns a function that, in one transaction, counts a key up, under
	// its row's lock, dispatches the number and writes it down.
	counter() (func(ctx context.Context, key string) error, error)
	// handle registers a handler that writes one row.
	handle(bus *waybill.Bus, opt inbox.Option)
	suppressed(ctx context.Context, id waybill.MessageID)
	Close() error
}

func open(ctx context.Context, address string) (service, error) {
	if strings.HasPrefix(address, "postgres:") {
		db, err := waypg.Open(ctx, address, waypg.Config{})
		return postgres{db}, err
	}
	db, err := mysql.Open(ctx, config.MustParseDSN(address), waymysql.Config{})
	return mariadb{db}, err
}

type postgres struct{ *waypg.DB }

func (db postgres) counter() (func(ctx context.Context, key string) error, error) {
	out, err := outbox.New(db.DB, outbox.Config{To: transport})
	return func(ctx context.Context, key string) error {
		return out.InTx(ctx, func(ctx context.Context, tx waypg.Tx) error {
			var n int
			if err := tx.SQL().QueryRow(ctx, "UPDATE counts SET n = n + 1 WHERE k = $1 RETURNING n", key).Scan(&n); err != nil {
				return err
			}
			id, err := tx.Dispatch(ctx, counted{key, n})
			if err != nil {
				return err
			}
			_, err = tx.SQL().Exec(ctx, "INSERT INTO committed (k, n, message_id) VALUES ($1, $2, $3)", key, n, id.String())
			return err
		})
	}, err
}

func (db postgres) handle(bus *waybill.Bus, opt inbox.Option) {
	inbox.Handle(bus, db.DB, "count", func(ctx context.Context, tx pgx.Tx, m counted) error {
		_, err := tx.Exec(ctx, "INSERT INTO handled (k, n, message_id) VALUES ($1, $2, $3)", m.Key, m.N, idIn(ctx))
		return err
	}, opt)
}

func (db postgres) suppressed(ctx context.Context, id waybill.MessageID) {
	_, _ = db.Pool().Exec(ctx, "INSERT INTO suppressed (message_id) VALUES ($1)", id.String())
}

type mariadb struct{ *waymysql.DB }

func (db mariadb) counter() (func(ctx context.Context, key string) error, error) {
	out, err := outbox.New(db.DB, outbox.Config{To: transport})
	return func(ctx context.Context, key string) error {
		return out.InTx(ctx, func(ctx context.Context, tx waymysql.Tx) error {
			if _, err := tx.SQL().ExecContext(ctx, "UPDATE counts SET n = n + 1 WHERE k = ?", key); err != nil {
				return err
			}
			var n int
			if err := tx.SQL().QueryRowContext(ctx, "SELECT n FROM counts WHERE k = ?", key).Scan(&n); err != nil {
				return err
			}
			id, err := tx.Dispatch(ctx, counted{key, n})
			if err != nil {
				return err
			}
			_, err = tx.SQL().ExecContext(ctx, "INSERT INTO committed (k, n, message_id) VALUES (?, ?, ?)", key, n, id.String())
			return err
		})
	}, err
}

func (db mariadb) handle(bus *waybill.Bus, opt inbox.Option) {
	inbox.Handle(bus, db.DB, "count", func(ctx context.Context, tx *sql.Tx, m counted) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO handled (k, n, message_id) VALUES (?, ?, ?)", m.Key, m.N, idIn(ctx))
		return err
	}, opt)
}

func (db mariadb) suppressed(ctx context.Context, id waybill.MessageID) {
	_, _ = db.Pool().ExecContext(ctx, "INSERT INTO suppressed (message_id) VALUES (?)", id.String())
}

func idIn(ctx context.Context) string {
	id, _ := waybill.Last[waybill.MessageID](waybill.EnvelopeFrom(ctx))
	return id.String()
}

// tables are those of the campaign, on each kind of database.
func tables(serial string) []string {
	all := []string{
		"CREATE TABLE counts (k varchar(64) PRIMARY KEY, n int NOT NULL)",
		"CREATE TABLE committed (i " + serial + " PRIMARY KEY, k varchar(64) NOT NULL, n int NOT NULL, message_id char(36) NOT NULL)",
		// Without a unique index on purpose: a second effect must be visible.
		"CREATE TABLE handled (i " + serial + " PRIMARY KEY, k varchar(64) NOT NULL, n int NOT NULL, message_id char(36) NOT NULL)",
		"CREATE TABLE suppressed (message_id char(36) NOT NULL)",
	}
	for i := range keys {
		all = append(all, fmt.Sprintf("INSERT INTO counts VALUES ('key-%d', 0)", i))
	}
	return all
}
