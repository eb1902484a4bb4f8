package waypg_test

import (
	"context"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/worker"
)

// manyEntries are rows that a statement must not read, with and without statistics of them.
const manyEntries = `
	INSERT INTO waybill_retry (queue, message_id, message_name, partition_key, body, held, held_until)
	SELECT 'jobs', gen_random_uuid(), 'order.placed', 'broken', '{}', CASE i WHEN 1 THEN 1 ELSE 2 END, now() + interval '1 hour' FROM generate_series(1, 20000) AS i;
	INSERT INTO waybill_delayed (due_at, queue, message_id, message_name, body)
	SELECT now() + interval '1 hour', 'jobs', gen_random_uuid(), 'order.placed', '{}' FROM generate_series(1, 20000);
	INSERT INTO waybill_failed (source, transport, message_id, message_name, partition_key, headers, body, state, created_at, failures, last_error)
	SELECT 'worker', 'jobs', gen_random_uuid(), 'order.placed', '', '{}', '{}', 'failed', now(), 1, 'e' FROM generate_series(1, 20000);
	INSERT INTO waybill_failed_attempt (transport, message_id, attempt, at, worker, handler, error_type, error, stack, fingerprint)
	SELECT 'jobs', gen_random_uuid(), 1, now(), '', '', '', '', '', '' FROM generate_series(1, 20000)`

// The questions of each batch, look or operation have the cost of their size: not that of the
// retries of a broken key, of messages that are due later, or of other dead letters.
func TestOtherRowsAreNotRead(t *testing.T) {
	t.Parallel()
	for name, analyze := range map[string]string{"without statistics": "SELECT 1", "with statistics": "ANALYZE"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, testserver.Postgres, waypg.Config{})
			q, err := db.RetryQueue("jobs")
			if err != nil {
				t.Fatal(err)
			}
			for _, table := range []string{"waybill_retry", "waybill_delayed", "waybill_failed", "waybill_failed_attempt"} {
				exec(t, db, "ALTER TABLE "+table+" SET (autovacuum_enabled = off)")
			}
			exec(t, db, manyEntries)
			exec(t, db, analyze)
			var arrived []*waybill.Delivery
			var replayed []admin.FailedMessage
			for i := range 50 {
				rec := record(t, order{string(rune('a' + i)), i})
				arrived = append(arrived, &waybill.Delivery{Record: rec})
				replayed = append(replayed, admin.FailedMessage{Transport: "jobs", ID: rec.ID})
			}
			for _, c := range []struct {
				table string
				most  int
				do    func() error
			}{
				{"waybill_retry", 500, func() error { _, err := q.Contains(t.Context(), arrived...); return err }},
				{"waybill_failed", 20_500, func() error { _, err := db.FailedAgain(t.Context(), replayed...); return err }}, // skipped ones are looked for once
				{"waybill_delayed", 2000, func() error {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					_, _ = newQueue(t, db, "idle", waypg.QueueConfig{}).Receive(ctx, 1)
					return nil
				}},
			} {
				n := entriesRead(t, db, c.table, func() {
					if err := c.do(); err != nil {
						t.Error(err)
					}
				})
				if n > c.most {
					t.Errorf("%d entries of %s are read, want at most %d", n, c.table, c.most)
				}
			}
		})
	}
}

// Nor does the acknowledgement of a retry read the failures of other messages, also with the plans
// that were made while there were none.
func TestAcknowledgementOfARetryReadsItsFailuresAlone(t *testing.T) {
	t.Parallel()
	db := openAt(t, testserver.Postgres(t)+"&pool_max_conns=2", waypg.Config{}) // one, and one that listens
	q, err := db.RetryQueue("jobs")
	if err != nil {
		t.Fatal(err)
	}
	retry := func(n int) []*waybill.Delivery {
		t.Helper()
		var moves []worker.Move
		for range 20 {
			moves = append(moves, worker.Move{Delivery: &waybill.Delivery{Record: record(t, order{"", n})}, Attempt: &worker.Attempt{At: time.Now()}})
		}
		if err := q.Add(t.Context(), moves...); err != nil {
			t.Fatal(err)
		}
		ds, err := q.Receive(t.Context(), 100)
		if err != nil || len(ds) != len(moves) {
			t.Fatalf("%d messages to retry, want %d: %v", len(ds), len(moves), err)
		}
		return ds
	}
	for n := range 20 {
		if err := q.Ack(t.Context(), retry(n)...); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, manyEntries)
	for i, table := range []string{"waybill_retry", "waybill_failed_attempt", "waybill_failed"} {
		ds := retry(100 + i)
		if n := entriesRead(t, db, table, func() { err = q.Ack(t.Context(), ds...) }); n > 2000 || err != nil {
			t.Errorf("%d entries of %s are read for 20 messages: %v", n, table, err)
		}
	}
}

// The statistics are those of a queue with one key alone.
func TestAcknowledgementReadsNoRowsSetAsideOfAnotherKey(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	q := newQueue(t, db, "q", waypg.QueueConfig{})
	exec(t, db, `ALTER TABLE waybill_queue SET (autovacuum_enabled = off)`)
	exec(t, db, `INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, body, held, held_until)
		SELECT 'q', gen_random_uuid(), 'order.placed', 'broken', '{}', CASE i WHEN 1 THEN 1 ELSE 2 END, now() + interval '1 hour' FROM generate_series(1, 20000) AS i`)
	exec(t, db, "ANALYZE waybill_queue")
	var msgs []any
	for i := range 64 {
		msgs = append(msgs, order{string(rune('a' + i%8)), i})
	}
	local(t, db, msgs...)
	handled := 0
	n := entriesRead(t, db, "waybill_queue", func() {
		for handled < len(msgs) {
			ds := receiveSome(t, q, 40)
			handled += len(ds)
			if err := q.Ack(t.Context(), ds...); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n > 10_000 {
		t.Errorf("%d entries are read for 64 messages beside 20,000 rows set aside", n)
	}
}
