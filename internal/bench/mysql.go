package bench

import (
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/droptables"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// mysql is a set of tables with a prefix of their own, in MySQL or MariaDB.
type mysql struct {
	prefix  string
	buckets int
	open    func(ctx context.Context, cfg waymysql.Config) (*waymysql.DB, error)
	db      *waymysql.DB
	lane    int
	out     *outbox.Outbox[*sql.Tx]
}

func newMySQL(ctx context.Context, opt Options, prefix string) (_ *mysql, err error) {
	p := &mysql{prefix: prefix, buckets: opt.buckets(), open: opt.MySQL}
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
	if err := p.db.Pool().QueryRowContext(ctx, p.sql("SELECT id FROM {}outbox_lane")).Scan(&p.lane); err != nil {
		return nil, err
	}
	return p, p.exec(ctx,
		// The yardstick's outbox: the same columns, with the index it would have.
		`CREATE TABLE {}ideal (id bigint AUTO_INCREMENT PRIMARY KEY, message_id binary(16) NOT NULL, message_name varchar(190) NOT NULL,
			partition_key varchar(255) NOT NULL, headers json NOT NULL, body longblob NOT NULL, created_at datetime(6) NOT NULL)`,
		`CREATE TABLE {}orders (id bigint AUTO_INCREMENT PRIMARY KEY, customer varchar(255) NOT NULL, cents int NOT NULL)`,
		// The yardstick of dispatch writes the columns of the outbox to a table that
		// grows at its end, which is the cheapest there is.
		`CREATE TABLE {}plain (lane smallint NOT NULL, bucket smallint NOT NULL, id bigint AUTO_INCREMENT PRIMARY KEY, message_id binary(16) NOT NULL, message_name varchar(190) NOT NULL,
			partition_key varchar(255) NOT NULL, headers json NOT NULL, body longblob NOT NULL, created_at datetime(6) NOT NULL)`)
}

func (p *mysql) database() string    { return "mysql" }
func (p *mysql) store() outbox.Store { return p.db }

func (p *mysql) elsewhere(ctx context.Context) (outbox.Store, func() error, error) {
	db, err := p.open(ctx, waymysql.Config{Prefix: p.prefix})
	if err != nil {
		return nil, nil, err
	}
	return db, db.Close, nil
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

// clear truncates the tables of the yardstick. From the outbox it deletes: a
// table whose ids begin anew is another one to those who read it.
func (p *mysql) clear(ctx context.Context) error {
	return p.exec(ctx, "DELETE FROM {}outbox", "TRUNCATE {}plain", "TRUNCATE {}orders")
}

func (p *mysql) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return errors.Join(droptables.WithPrefix(ctx, p.db.Pool(), p.prefix), p.db.Close())
}

// load writes bodies of 200 bytes that begin with the row's number.
func (p *mysql) load(ctx context.Context, opt Options, ideal bool) error {
	const each = 1000
	table := "{}outbox"
	if ideal {
		table = "{}ideal"
	}
	for from := 1; from <= opt.Rows; from += each {
		var values []string
		var args []any
		for i := from; i < min(from+each, opt.Rows+1); i++ {
			id, err := waybill.NewMessageID()
			if err != nil {
				return err
			}
			key := keyOf(i, opt.Keys)
			body := append(binary.BigEndian.AppendUint64(nil, uint64(i)), strings.Repeat("x", 192)...)
			values = append(values, "?, 'order.placed', ?, ?, ?, UTC_TIMESTAMP(6)")
			args = append(args, id[:], key, "{}", body)
			if !ideal {
				values[len(values)-1] += fmt.Sprintf(", %d, %d", p.lane, outbox.Bucket(key, p.buckets))
			}
		}
		columns := "message_id, message_name, partition_key, headers, body, created_at"
		if !ideal {
			columns += ", lane, bucket"
		}
		statement := fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, columns, strings.Join(values, "), ("))
		if _, err := p.db.Pool().ExecContext(ctx, p.sql(statement), args...); err != nil {
			return err
		}
	}
	return p.exec(ctx, "ANALYZE TABLE "+table)
}

func (p *mysql) ideal(ctx context.Context, ch *amqp.Channel, exchange string) (int, error) {
	tx, err := p.db.Pool().BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	rows, err := tx.QueryContext(ctx, p.sql(`SELECT id, message_id, message_name, partition_key, headers, body, CAST(created_at AS CHAR) FROM {}ideal ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED`))
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	var ids []int64
	var confirms []*amqp.DeferredConfirmation
	for rows.Next() {
		var r row
		var message []byte
		var created string
		if err := rows.Scan(&r.id, &message, &r.name, &r.key, &r.headers, &r.body, &created); err != nil {
			return 0, err
		}
		copy(r.message[:], message)
		if r.created, err = time.Parse(time.DateTime, created); err != nil {
			return 0, err
		}
		confirm, err := r.publish(ctx, ch, exchange)
		if err != nil {
			return 0, err
		}
		ids, confirms = append(ids, r.id), append(confirms, confirm)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(ids) == 0 {
		return 0, err
	}
	if err := wait(ctx, confirms); err != nil {
		return 0, err
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return 0, err
	}
	// With WHERE id IN the server scans what others have locked: a deadlock.
	_, err = tx.ExecContext(ctx, p.sql(`DELETE i FROM JSON_TABLE(?, '$[*]' COLUMNS (id bigint PATH '$')) AS t STRAIGHT_JOIN {}ideal AS i ON i.id = t.id`), string(list))
	if err != nil {
		return 0, err
	}
	return len(ids), tx.Commit()
}

// transactions sets InTx, and Dispatch in a transaction of the caller's own,
// against an insert without a lock by the same client.
func (p *mysql) transactions() ([]transaction, error) {
	return []transaction{{"InTx", p.inTx, p.plain}, {"own transaction", p.own, p.plain}}, nil
}

// target is lower than PostgreSQL's: a gate is a row that is locked, and several
// take a statement of their own.
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
		body, err := json.Marshal(m)
		if err != nil {
			return err
		}
		id, err := waybill.NewMessageID()
		if err != nil {
			return err
		}
		values = append(values, "(?, ?, ?, ?, ?, '{}', ?, ?)")
		args = append(args, p.lane, outbox.Bucket(m.Customer, p.buckets), id[:], m.MessageName(), m.PartitionKey(), body, time.Now().UTC())
	}
	insert := p.sql(`INSERT INTO {}plain (lane, bucket, message_id, message_name, partition_key, headers, body, created_at) VALUES `) + strings.Join(values, ", ")
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
