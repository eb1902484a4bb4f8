package waymysql_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// A promoter that has waited for a gate gives its session back as it was: the
// application's statements wait for locks as long as before.
func TestMoverLeavesTheLockWaitOfItsSessionAlone(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	if err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[*sql.Tx]) error {
		_, err := tx.Dispatch(ctx, order{"k", 1}, waybill.Delay(time.Millisecond))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	open := begin(t, pool(t, dsn))
	if _, err := out.Dispatch(t.Context(), open, order{"k", 0}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	longest := time.Duration(0)
	claim := func() []outbox.ClaimedRow {
		begun := time.Now()
		c, err := db.Claim(t.Context(), outbox.DefaultTransport, outbox.Keyed, outbox.ClaimLimit{Rows: 10, Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(begun))
		if err := c.Settle(t.Context(), c.Rows(), nil); err != nil {
			t.Fatal(err)
		}
		return c.Rows()
	}
	for range 5 {
		if rows := claim(); len(rows) > 0 {
			t.Fatalf("%d rows are claimed, whose transaction is open", len(rows))
		}
	}
	if longest < 900*time.Millisecond || longest > 20*time.Second {
		t.Errorf("a claim took %v at the longest, want about the second for which one waits for the gate", longest)
	}
	var conns []*sql.Conn
	for range db.Pool().Stats().OpenConnections {
		conn, err := db.Pool().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		var wait, usual int
		if err := conn.QueryRowContext(t.Context(), "SELECT @@SESSION.innodb_lock_wait_timeout, @@GLOBAL.innodb_lock_wait_timeout").Scan(&wait, &usual); err != nil {
			t.Fatal(err)
		}
		if wait != usual {
			t.Errorf("a session waits for locks for %d s, want %d", wait, usual)
		}
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	commit(t, open)
	got := 0
	for start := time.Now(); got < 2 && time.Since(start) < 20*time.Second; time.Sleep(20 * time.Millisecond) {
		got += len(claim())
	}
	if got != 2 {
		t.Errorf("%d messages are claimed once the transaction has ended, want 2", got)
	}
}

// The server reads a whole body for its length, so a promotion asks for as many messages
// as it is likely to promote: all that are due would be read again for each batch.
func TestPromotionReadsFewLargeBodies(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	put(t, db)
	const n = 200
	for range n {
		exec(t, db, `INSERT INTO waybill_delayed (due_at, transport, message_id, message_name, partition_key, headers, body)
			SELECT UTC_TIMESTAMP(6), id, UNHEX(REPEAT('00', 16)), 'big', '', '{}', REPEAT('x', 300 << 10) FROM waybill_transport`)
	}
	next := counted(t, db, func() {
		for some := true; some; {
			c, err := db.Claim(t.Context(), outbox.DefaultTransport, outbox.Unkeyed, outbox.ClaimLimit{Rows: 500, Bytes: 64 << 20})
			if err != nil {
				t.Fatal(err)
			}
			settle(t, c, c.Rows())
			settle(t, claim(t, db, outbox.ClaimLimit{Rows: 1, Bytes: 1}), nil)
			if err := db.Pool().QueryRowContext(t.Context(), "SELECT EXISTS (SELECT 1 FROM waybill_delayed)").Scan(&some); err != nil {
				t.Fatal(err)
			}
		}
	}, "Handler_read_next")
	if next > 5*n {
		t.Errorf("%d entries were read for %d messages", next, n)
	}
}
