package waymysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// BenchmarkEmptyPoll measures a relay's poll of an outbox that has nothing for
// it: without rows, and with 200,000 that are deleted and not purged, because
// an open transaction holds a snapshot from before.
func BenchmarkEmptyPoll(b *testing.B) {
	for _, dead := range []int{0, 200_000} {
		b.Run(fmt.Sprintf("dead=%d", dead), func(b *testing.B) {
			db, _ := newDB(b, waymysql.Config{})
			put(b, db, order{"k", 0})
			if dead > 0 {
				old, err := db.Pool().BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
				if err != nil {
					b.Fatal(err)
				}
				defer old.Rollback()
				if _, err := old.Exec("SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); err != nil {
					b.Fatal(err)
				}
				exec(b, db, "INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body) SELECT l.id, s.seq % 64, UNHEX(LEFT(SHA2(UUID(), 256), 32)), 'x', 'k', '{}' FROM waybill_transport AS l JOIN "+numbers(dead)+" AS s")
				exec(b, db, "DELETE FROM waybill_outbox WHERE id > 0")
			}
			var msgs []any
			for _, key := range append(otherBuckets(63), sameBucket(1)...) {
				msgs = append(msgs, order{key, 0})
			}
			put(b, db, msgs...)
			drain(b, db, &recorder{}, outbox.RelayConfig{}) // the marks are behind all of them
			poll := func() time.Duration {
				start := time.Now()
				c := claim(b, db, outbox.ClaimLimit{Rows: 500, Bytes: 4 << 20})
				took := time.Since(start)
				if len(c.Rows()) > 0 {
					b.Fatalf("%d rows", len(c.Rows()))
				}
				return took
			}
			poll()
			var all []time.Duration
			for b.Loop() {
				all = append(all, poll())
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "µs-median")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "µs-p99")
		})
	}
}

// BenchmarkUnitOfWork measures a unit with a statement of the application's and a message,
// on connections of waybill's own and on sessions that a pool lends.
func BenchmarkUnitOfWork(b *testing.B) {
	for name, open := range map[string]func(t testing.TB, dsn string, cfg waymysql.Config) *waymysql.DB{"Open": open, "New": borrow} {
		b.Run(name, func(b *testing.B) {
			_, dsn := newDB(b, waymysql.Config{})
			db := open(b, dsn, waymysql.Config{})
			exec(b, db, "CREATE TABLE app (n INT PRIMARY KEY AUTO_INCREMENT)")
			out := newOutbox(b, db, outbox.Config{})
			for b.Loop() {
				if err := out.InTx(context.Background(), func(ctx context.Context, tx waymysql.Tx) error {
					if _, err := tx.SQL().ExecContext(ctx, "INSERT INTO app VALUES ()"); err != nil {
						return err
					}
					_, err := tx.Dispatch(ctx, order{"k", 0})
					return err
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
