package waypg_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

// queueFills insert 20,000 rows that no claim may take, as many as there are ways to wait.
var queueFills = map[string]string{
	"retries": `INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, body, held, held_until)
		SELECT 'q', gen_random_uuid(), 'order.placed', CASE i % 2 WHEN 0 THEN '' ELSE 'r' || i END, '{}', 1, now() + interval '1 hour'
		FROM generate_series(1, 20000) AS i`,
	"leased": `INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, body, held, held_until, holder, lease)
		SELECT 'q', gen_random_uuid(), 'order.placed', 'l' || i, '{}', 1, now() + interval '1 hour', gen_random_uuid(), 1
		FROM generate_series(1, 20000) AS i`,
	"behind a head": `INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, body, held, held_until)
		SELECT 'q', gen_random_uuid(), 'order.placed', 'h', '{}', CASE i WHEN 1 THEN 1 ELSE 0 END,
		       CASE i WHEN 1 THEN now() + interval '1 hour' ELSE '-infinity' END
		FROM generate_series(1, 20000) AS i`,
}

// Rows that wait cost nothing: neither a claim and acknowledgement of another row, nor a
// look at a queue without one. The statistics are those of the empty table.
func TestWaitingRowsOfAQueueCostNothing(t *testing.T) {
	t.Parallel()
	for name, fill := range queueFills {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, testserver.Postgres, waypg.Config{})
			q := newQueue(t, db, "q", waypg.QueueConfig{})
			exec(t, db, "ALTER TABLE waybill_queue SET (autovacuum_enabled = off)")
			freshClaim, freshLook := queueCost(t, db, q)
			exec(t, db, fill)
			exec(t, db, "INSERT INTO waybill_queue (queue, message_id, message_name, body) VALUES ('q', gen_random_uuid(), 'order.placed', '{}')")
			for taken := 0; taken < 1; { // sets the rows aside
				ds := receiveSome(t, q, 40)
				taken += len(ds)
				if err := q.Ack(t.Context(), ds...); err != nil {
					t.Fatal(err)
				}
			}
			exec(t, db, "VACUUM waybill_queue")
			claim, look := queueCost(t, db, q)
			t.Logf("a claim and acknowledgement reads %d blocks, with waiting rows %d; an empty look %d, %d", freshClaim, claim, freshLook, look)
			if claim > 3*freshClaim+20 || look > 200 { // a fast machine looks more often than once
				t.Errorf("%d and %d blocks with waiting rows, %d and %d without", claim, look, freshClaim, freshLook)
			}
		})
	}
}

// queueCost is how many blocks the server touches for a message that comes and goes, and
// for a look at a queue without one.
func queueCost(t testing.TB, db *waypg.DB, q *waypg.Queue) (claim, look int) {
	t.Helper()
	const times = 20
	claim = blocks(t, db, func() {
		for range times {
			if err := q.Send(t.Context(), record(t, order{"live", 0})); err != nil {
				t.Fatal(err)
			}
			if err := q.Ack(t.Context(), receiveSome(t, q, 1)...); err != nil {
				t.Fatal(err)
			}
		}
	})
	look = blocks(t, db, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 250e6)
		defer cancel()
		if ds, err := q.Receive(ctx, 1); err == nil {
			t.Fatalf("received %d messages", len(ds))
		}
	})
	return claim / times, look
}

// A worker with one busy key writes few versions of its rows: each is set aside and leased once,
// and one of a claim is brought back.
func TestHotKeyWritesFewRowVersions(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	const messages = 400
	var msgs []any
	for i := range messages {
		msgs = append(msgs, order{"hot", i})
	}
	local(t, db, msgs...)
	bus := waybill.NewBus("main")
	waybill.Handle(bus, "billing", func(context.Context, order) error { return nil })
	w, err := worker.New(bus, newQueue(t, db, "q", waypg.QueueConfig{}), worker.Config{Limit: messages})
	if err != nil {
		t.Fatal(err)
	}
	updates := counted(t, db, "n_tup_upd FROM pg_stat_user_tables", func() {
		if err := w.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%.2f updates a message", float64(updates)/messages)
	if updates > 4*messages {
		t.Errorf("%d updates for %d messages, want 4 each at most", updates, messages)
	}
}

// blocks is how many blocks of the queue's table and indexes fn has the server touch.
func blocks(t testing.TB, db *waypg.DB, fn func()) int {
	t.Helper()
	return counted(t, db, "heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read FROM pg_statio_user_tables", fn)
}

// counted is by how much fn raises a counter of the queue's table.
func counted(t testing.TB, db *waypg.DB, counter string, fn func()) int {
	t.Helper()
	read := func() (n int) {
		t.Helper()
		for _, c := range db.Pool().AcquireAllIdle(t.Context()) { // a session that ends reports what it counted
			if err := c.Conn().Close(t.Context()); err != nil {
				t.Error(err)
			}
			c.Release()
		}
		conn, err := pgx.ConnectConfig(t.Context(), db.Pool().Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		await(t, "the sessions have ended", 60*time.Second, func() (ended bool) {
			err := conn.QueryRow(t.Context(), "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()").Scan(&ended)
			return err == nil && ended
		})
		err = conn.QueryRow(t.Context(), "SELECT "+counter+" WHERE relname = 'waybill_queue'").Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := read()
	fn()
	return read() - before
}
