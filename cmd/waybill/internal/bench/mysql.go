package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/test/droptables"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// mysql is a set of tables under a separate prefix, in MySQL or MariaDB.
type mysql struct {
	prefix    string
	buckets   int
	open      func(ctx context.Context, cfg waymysql.Config) (*waymysql.DB, error)
	db        *waymysql.DB
	transport int
	out       *outbox.Outbox[*sql.Tx]
	say       func(format string, args ...any) // progress
}

func newMySQL(ctx context.Context, opt Options, prefix string) (_ *mysql, err error) {
	p := &mysql{prefix: prefix, buckets: opt.buckets(), open: opt.MySQL, say: opt.say}
	if p.db, err = opt.MySQL(ctx, waymysql.Config{Prefix: prefix, MaxConns: 40}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	p.db.Pool().SetMaxIdleConns(40) // the yardstick's, too, stay open between its transactions
	if _, err := p.db.SchemaUp(ctx); err != nil {
		return nil, err
	}
	if err := rebucket(ctx, p.db, p.buckets); err != nil {
		return nil, err
	}
	if p.out, err = outbox.New(p.db, outbox.Config{}); err != nil {
		return nil, err
	}
	if err := p.db.Pool().QueryRowContext(ctx, p.sql("SELECT id FROM {}transport")).Scan(&p.transport); err != nil {
		return nil, err
	}
	return p, p.exec(ctx,
		// The yardsticks' outboxes: ideal with the columns of a message, bare with
		// its name and body alone.
		`CREATE TABLE {}ideal (id bigint AUTO_INCREMENT PRIMARY KEY, message_id binary(16) NOT NULL, message_name varchar(190) NOT NULL,
			partition_key varchar(255) NOT NULL, headers json NOT NULL, body longblob NOT NULL, created_at datetime(6) NOT NULL)`,
		`CREATE TABLE {}bare (id bigint AUTO_INCREMENT PRIMARY KEY, message_name varchar(190) NOT NULL, body longblob NOT NULL)`,
		`CREATE TABLE {}orders (id bigint AUTO_INCREMENT PRIMARY KEY, customer varchar(255) NOT NULL, cents int NOT NULL)`,
		`CREATE TABLE {}deck (slot bigint PRIMARY KEY, k bigint NOT NULL)`,
		`INSERT INTO {}deck VALUES `+values(),
		// The yardstick of dispatch writes the columns of the outbox to a table that
		// grows at its end, which is the cheapest there is.
		`CREATE TABLE {}plain (transport smallint NOT NULL, bucket smallint NOT NULL, id bigint AUTO_INCREMENT PRIMARY KEY, message_id binary(16) NOT NULL, message_name varchar(190) NOT NULL,
			partition_key varchar(255) NOT NULL, headers json NOT NULL, body longblob NOT NULL, created_at datetime(6) NOT NULL)`)
}

func (p *mysql) database() string    { return "mysql" }
func (p *mysql) option() string      { return "prefix=" + p.prefix }
func (p *mysql) store() outbox.Store { return p.db }

func (p *mysql) elsewhere(ctx context.Context) (outbox.Store, func() error, error) {
	db, err := p.open(ctx, waymysql.Config{Prefix: p.prefix})
	if err != nil {
		return nil, nil, err
	}
	return db, db.Close, nil
}

func (p *mysql) waking(context.Context) (waking, error) {
	return waking{close: func() error { return nil }}, nil
}

// sql puts the prefix into a statement.
func (p *mysql) sql(text string) string { return strings.ReplaceAll(text, "{}", p.prefix) }

func (p *mysql) exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := p.db.Pool().ExecContext(ctx, p.sql(s)); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// clear truncates the yardsticks' tables. In the outbox it deletes all but the
// sentinel rows, because ids must not restart.
func (p *mysql) clear(ctx context.Context) error {
	return p.exec(ctx, "DELETE FROM {}outbox WHERE id > 0", "DELETE FROM {}outbox_unkeyed WHERE id > 0", "TRUNCATE {}plain", "TRUNCATE {}ideal", "TRUNCATE {}bare", "TRUNCATE {}orders")
}

func (p *mysql) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return errors.Join(droptables.WithPrefix(ctx, p.db.Pool(), p.prefix), p.db.Close())
}

// transactions compares InTx, and DispatchAll in a caller's transaction, with an
// insert without a lock by the same client.
func (p *mysql) transactions() []transaction {
	return []transaction{
		{name: "InTx", waybill: p.inTx, plain: p.plain},
		{name: "own transaction", waybill: p.own, plain: p.plain},
	}
}

// target is lower than PostgreSQL's: a gate is a locked row instead of an advisory
// lock, and several messages lock several rows.
func (p *mysql) target(messages int) float64 {
	if messages > 1 {
		return 0.65
	}
	return 0.75
}

const insertMySQLOrder = `INSERT INTO {}orders (customer, cents) VALUES (?, ?)`

func (p *mysql) inTx(ctx context.Context, ms []sold) error {
	return p.out.InTx(ctx, func(ctx context.Context, tx waymysql.Tx) error {
		if _, err := tx.SQL().ExecContext(ctx, p.sql(insertMySQLOrder), ms[0].Customer, ms[0].Cents); err != nil {
			return err
		}
		for _, m := range ms {
			if _, err := tx.Dispatch(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *mysql) own(ctx context.Context, ms []sold) error {
	return p.begin(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, p.sql(insertMySQLOrder), ms[0].Customer, ms[0].Cents); err != nil {
			return err
		}
		_, err := p.out.DispatchAll(ctx, tx, anys(ms)...)
		return err
	})
}

// plain writes the same columns from the same values, in one statement.
func (p *mysql) plain(ctx context.Context, ms []sold) error {
	var values []string
	var args []any
	for _, m := range ms {
		id, body, err := m.encode()
		if err != nil {
			return err
		}
		values = append(values, "(?, ?, ?, ?, ?, '{}', ?, ?)")
		args = append(args, p.transport, outbox.Bucket(m.Customer, p.buckets), id[:], m.MessageName(), m.PartitionKey(), body, time.Now().UTC())
	}
	insert := p.sql(`INSERT INTO {}plain (transport, bucket, message_id, message_name, partition_key, headers, body, created_at) VALUES `) + strings.Join(values, ", ")
	return p.begin(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, p.sql(insertMySQLOrder), ms[0].Customer, ms[0].Cents); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, insert, args...)
		return err
	})
}

func (p *mysql) begin(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := p.db.Pool().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}
