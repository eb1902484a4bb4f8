package waypg_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/waytest"
)

func TestOutbox(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) { waytest.Outbox(t, pgxHarness(t, at)) })
}

func TestInbox(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) { waytest.Inbox(t, pgxHarness(t, at)) })
}

func TestQueue(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) { waytest.Queue(t, pgxHarness(t, at)) })
}

func TestRetries(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) { waytest.Retries(t, pgxHarness(t, at)) })
}

func TestSchedules(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) { waytest.Schedules(t, pgxHarness(t, at)) })
}

func TestSchedulesOfDatabaseSQL(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) { waytest.Schedules(t, sqlHarness(t, at)) })
}

// The other library has the same tables and relays.
func TestDispatchOfDatabaseSQL(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) { waytest.Dispatch(t, sqlHarness(t, at)) })
}

func TestInboxOfDatabaseSQL(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) { waytest.Inbox(t, sqlHarness(t, at)) })
}

// A schema of one database is a harness of the conformance suites: that is made
// faster than a database.
type schema struct {
	dsn, name string
	pooled    bool
	db        *waypg.DB
}

func schemas(t *testing.T, at opener) func(t *testing.T) schema {
	dsn := at(t)
	maker := connect(t, dsn, waypg.Config{})
	var n atomic.Int64
	conn, err := maker.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var pid uint32
	if err := conn.QueryRow(t.Context(), "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	pooled := pid != conn.Conn().PgConn().PID()
	return func(t *testing.T) schema {
		name := fmt.Sprint("place", n.Add(1))
		exec(t, maker, "CREATE SCHEMA "+name)
		return schema{dsn, name, pooled, openAt(t, dsn, waypg.Config{Schema: name})}
	}
}

// pgxHarness returns the suites' places, for transactions of pgx.
func pgxHarness(t *testing.T, at opener) func(t *testing.T) waytest.Harness[pgx.Tx] {
	next := schemas(t, at)
	return func(t *testing.T) waytest.Harness[pgx.Tx] {
		s := next(t)
		table := s.name + ".business"
		exec(t, s.db, "CREATE TABLE "+table+" (text varchar(100) PRIMARY KEY)")
		run := func(statement string, args ...any) func(ctx context.Context, tx pgx.Tx) error {
			return func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, statement, args...)
				return err
			}
		}
		return waytest.Harness[pgx.Tx]{
			Store:    s.db,
			Begin:    s.db.Pool().Begin,
			Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
			Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
			Insert: func(ctx context.Context, tx pgx.Tx, text string) error {
				return run("INSERT INTO "+table+" VALUES ($1)", text)(ctx, tx)
			},
			Texts: func(ctx context.Context) ([]string, error) {
				rows, err := s.db.Pool().Query(ctx, "SELECT text FROM "+table)
				if err != nil {
					return nil, err
				}
				return pgx.CollectRows(rows, pgx.RowTo[string])
			},
			Another: func(t *testing.T) waytest.Store[pgx.Tx] { return s.another(t) },
			Crashing: func(t *testing.T) (waytest.Store[pgx.Tx], func()) {
				db, network := s.behindProxy(t)
				return db, func() { network.Reset() }
			},
			Killable:    s.killable(),
			Impatient:   func(t *testing.T) (waytest.Store[pgx.Tx], time.Duration) { return s.impatient(t), impatience },
			Queue:       s.queue,
			Retries:     s.db.RetryQueueWithLease,
			LockedQueue: s.lockedQueue(),
			Bucket:      s.bucket,
			Ends:        map[string]func(ctx context.Context, tx pgx.Tx) error{"ROLLBACK": run("ROLLBACK"), "COMMIT": run("COMMIT")},
			Losses:      map[string]func(ctx context.Context, tx pgx.Tx) error{"a failed statement": run("SELECT 1/0")},
			LostAnswer: func(t *testing.T) (waytest.Store[pgx.Tx], func()) {
				lossy, network := s.behindCutter(t)
				return lossy, func() { network.set(true, "") } // the commit, with its rows, is one round trip
			},
		}
	}
}

// sqlHarness is pgxHarness for transactions of database/sql.
func sqlHarness(t *testing.T, at opener) func(t *testing.T) waytest.Harness[*sql.Tx] {
	next := schemas(t, at)
	return func(t *testing.T) waytest.Harness[*sql.Tx] {
		s := next(t)
		p := waytest.SQLHarness(t, s.db.SQL(), s.db.SQL().Pool(), s.name+".business")
		p.Another = func(t *testing.T) waytest.Store[*sql.Tx] { return s.another(t).SQL() }
		p.Impatient = func(t *testing.T) (waytest.Store[*sql.Tx], time.Duration) { return s.impatient(t).SQL(), impatience }
		p.Queue, p.Bucket = s.queue, s.bucket
		p.Ends = map[string]func(ctx context.Context, tx *sql.Tx) error{
			"ROLLBACK": waytest.ExecSQL("ROLLBACK"), "COMMIT": waytest.ExecSQL("COMMIT"), "tx.Commit": func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
		}
		p.Losses = map[string]func(ctx context.Context, tx *sql.Tx) error{"a failed statement": waytest.ExecSQL("SELECT 1/0")}
		p.LostAnswer = func(t *testing.T) (waytest.Store[*sql.Tx], func()) {
			lossy, network := s.behindCutter(t)
			return lossy.SQL(), func() { network.set(false, "\x00\x0bcommit\x00") } // and not synchronous_commit
		}
		return p
	}
}

// another is the database as another process sees it.
func (s schema) another(t *testing.T) *waypg.DB {
	return connect(t, s.dsn, waypg.Config{Schema: s.name})
}

// impatience is the idle timeout of impatient.
const impatience = 2 * time.Second

// impatient is another with a short idle timeout.
func (s schema) impatient(t *testing.T) *waypg.DB {
	return connect(t, s.dsn, waypg.Config{Schema: s.name, IdleTimeout: impatience})
}

// behindCutter connects through a network of the test's own.
func (s schema) behindCutter(t *testing.T) (*waypg.DB, *cutter) {
	t.Helper()
	network := &cutter{}
	return s.through(t, func(target string) string { return network.start(t, target) }), network
}

// behindProxy is behindCutter for faults of all connections.
func (s schema) behindProxy(t *testing.T) (*waypg.DB, *faultproxy.Proxy) {
	t.Helper()
	var network *faultproxy.Proxy
	db := s.through(t, func(target string) string {
		var err error
		if network, err = faultproxy.Start(target); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(network.Close)
		return network.Addr()
	})
	return db, network
}

// through connects by way of an address that start returns for the server's.
func (s schema) through(t *testing.T, start func(target string) (addr string)) *waypg.DB {
	t.Helper()
	u, err := url.Parse(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = start(u.Host)
	return connect(t, u.String(), waypg.Config{Schema: s.name})
}

// killable is nil behind a pooler, which learns of the end of a client before its server.
func (s schema) killable() func(t *testing.T) waytest.Process[pgx.Tx] {
	if s.pooled {
		return nil
	}
	return func(t *testing.T) waytest.Process[pgx.Tx] {
		var kill *faultproxy.KillSwitch
		db := s.through(t, func(target string) string {
			var err error
			if kill, err = faultproxy.StartKillSwitch(target, faultproxy.PostgresStatements); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(kill.Close)
			return kill.Addr()
		})
		revive := func() (struck bool) {
			if struck = kill.Revive(); struck {
				db.Pool().Reset() // which has connections that it does not know to be dead
			}
			return struck
		}
		return waytest.Process[pgx.Tx]{Store: db, Retries: db.RetryQueueWithLease, KillAfter: kill.KillAfter, Revive: revive}
	}
}

func (s schema) queue(name string, lease time.Duration) (waytest.Transport, error) {
	return s.db.Queue(name, waypg.QueueConfig{Lease: lease})
}

// lockedQueue is nil behind a pooler, whose sessions have no settings of one client.
func (s schema) lockedQueue() func(t *testing.T, name string) (waytest.Transport, func()) {
	if s.pooled {
		return nil
	}
	return func(t *testing.T, name string) (waytest.Transport, func()) {
		db := connect(t, s.dsn+"&lock_timeout=300", waypg.Config{Schema: s.name})
		q, err := db.Queue(name, waypg.QueueConfig{})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := s.db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "LOCK TABLE "+s.name+".waybill_queue IN EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		return q, func() { _ = tx.Rollback(context.Background()) }
	}
}

func (s schema) bucket(ctx context.Context, id waybill.MessageID) (bucket int, err error) {
	err = s.db.Pool().QueryRow(ctx, "SELECT bucket FROM "+s.name+".waybill_outbox WHERE message_id = $1::text::uuid UNION ALL SELECT -1 FROM "+s.name+".waybill_outbox_unkeyed WHERE message_id = $1::text::uuid", id.String()).Scan(&bucket)
	return bucket, err
}
