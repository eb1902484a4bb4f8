package waymysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// A server where COMMIT begins the next transaction at once, or ends the session:
// waybill's own sessions are not like that, and an application's are its own
// affair.
func TestCompletionTypeOfTheServerChangesNothing(t *testing.T) {
	t.Parallel()
	for _, completion := range []string{"CHAIN", "RELEASE"} {
		t.Run(completion, func(t *testing.T) {
			t.Parallel()
			server := testserver.StartMariaDB(t, map[string]string{"completion_type": completion})
			dsn := driverDSN(t, server.URL())
			db := open(t, dsn, waymysql.Config{})
			if _, err := db.SchemaUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			out := newOutbox(t, db, outbox.Config{})
			exec(t, db, "CREATE TABLE app (n INT PRIMARY KEY)")
			sink := &recorder{}
			stop := relaying(t, db, sink, outbox.RelayConfig{})
			own := pool(t, dsn)
			var want []order
			refused := errors.New("refused")
			for i := range 10 {
				for _, end := range []error{nil, refused} {
					err := out.InTx(t.Context(), func(ctx context.Context, tx waymysql.Tx) error {
						if _, err := tx.SQL().ExecContext(ctx, "INSERT INTO app VALUES (?)", 3*i); err != nil {
							return err
						}
						if _, err := tx.Dispatch(ctx, order{"k", len(want)}); err != nil {
							return err
						}
						return end
					})
					if end == nil && err != nil || end != nil && err == nil {
						t.Fatalf("InTx = %v, want %v", err, end)
					}
					if end == nil {
						want = append(want, order{"k", len(want)})
					}
				}
				// A transaction of the application, in a session of waybill's pool and in
				// one of the application's.
				for j, p := range []*sql.DB{db.Pool(), own} {
					tx := begin(t, p)
					if _, err := out.Dispatch(t.Context(), tx, order{"k", len(want)}); err != nil {
						t.Fatal(err)
					}
					if _, err := tx.ExecContext(t.Context(), "INSERT INTO app VALUES (?)", 3*i+1+j); err != nil {
						t.Fatal(err)
					}
					commit(t, tx)
					want = append(want, order{"k", len(want)})
				}
			}
			await(t, "all come", 60*time.Second, func() bool { return len(sink.all()) >= len(want) })
			stop()
			if diff := cmp.Diff(want, sink.all()); diff != "" {
				t.Errorf("came (-want +got):\n%s", diff)
			}
			if n := count(t, db, "SELECT COUNT(*) FROM app"); n != 30 {
				t.Errorf("%d rows of the application's, want 30", n)
			}
			// A single statement is committed at once, whatever ran in its session before.
			q, err := db.Queue("q", waymysql.QueueConfig{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				if err := q.Send(t.Context(), record(t, order{"q", i})); err != nil {
					t.Fatal(err)
				}
				ds, err := q.Receive(t.Context(), 1)
				if err != nil || len(ds) != 1 {
					t.Fatalf("Receive = %v, %v", ds, err)
				}
				if err := q.Ack(t.Context(), ds...); err != nil {
					t.Fatal(err)
				}
			}
			other := open(t, dsn, waymysql.Config{}).Pool()
			for _, table := range []string{"queue", "outbox"} {
				var n int
				if err := other.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM waybill_"+table+" WHERE id > 0").Scan(&n); err != nil || n != 0 {
					t.Errorf("%d rows of %s are left, %v", n, table, err)
				}
			}
			_ = own.Close() // its sessions are chained
			await(t, "no transaction is open", 60*time.Second, func() bool {
				time.Sleep(120 * time.Millisecond) // see waiting
				return count(t, db, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()") == 0
			})
			for _, p := range []*sql.DB{db.Pool(), other} {
				var now string
				if err := p.QueryRowContext(t.Context(), "SELECT @@completion_type").Scan(&now); err != nil || now != "NO_CHAIN" {
					t.Errorf("completion_type = %s, %v", now, err)
				}
			}
			if err := db.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				var now string
				if err := tx.QueryRowContext(ctx, "SELECT @@completion_type").Scan(&now); err != nil || now != "NO_CHAIN" {
					return fmt.Errorf("in a unit of work completion_type = %s, %v", now, err)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}
