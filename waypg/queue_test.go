package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// receiveSome waits for messages.
func receiveSome(t testing.TB, q *waypg.Queue, max int) []*waybill.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ds, err := q.Receive(ctx, max)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// local sends msgs to the queue "q" of db in one transaction, without a relay.
func local(t testing.TB, db *waypg.DB, msgs ...any) {
	t.Helper()
	put(t, db, outbox.Config{To: "q", Queues: map[string]string{"q": "q"}}, msgs...)
}

// A claim of a queue reads the held messages, not the waiting ones.
func TestClaimOfALongQueueDoesNotScanIt(t *testing.T) {
	db := open(t, testserver.Postgres, waypg.Config{})
	q := newQueue(t, db, "q", waypg.QueueConfig{})
	claim := func() time.Duration {
		least := time.Hour
		for range 20 {
			start := time.Now()
			if ds := receiveSome(t, q, 1); len(ds) != 1 {
				t.Fatalf("%d messages, want 1", len(ds))
			}
			least = min(least, time.Since(start))
		}
		return least
	}
	fill := func(from, to int) {
		var msgs []any
		for i := from; i < to; i++ {
			msgs = append(msgs, order{fmt.Sprint(i), i})
		}
		local(t, db, msgs...)
	}
	fill(0, 100)
	short := claim()
	fill(100, 10_000)
	if long := claim(); long > 5*short+2*time.Millisecond {
		t.Errorf("claiming one message takes %v of 10000 and %v of 100", long, short)
	}
}

// Kills: a failed commit of a queue's transaction taken for a success, which
// would let the relay delete rows that the broker does not have.
func TestQueueReportsACommitThatFailed(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db, broker := open(t, at, waypg.Config{}), open(t, at, waypg.Config{})
		exec(t, broker, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END $$;
			CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON waybill_queue DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()`)
		q := newQueue(t, broker, "q", waypg.QueueConfig{})
		for range 2 { // the second time its statements are cached
			if err := q.Send(t.Context(), record(t, order{"x", 0})); err == nil {
				t.Error("Send = nil, want the error of COMMIT")
			}
		}
		put(t, db, outbox.Config{}, order{"a", 1})
		drain(t, db, q, outbox.RelayConfig{Retry: noRetry})
		if left, err := db.Backlog(t.Context(), "default"); err != nil || left.Pending != 1 {
			t.Errorf("%d messages left (%v), want the one that the broker does not have", left.Pending, err)
		}
	})
}

// A key's messages in the queue are in commit order too, in the first bucket as
// in any other.
func TestQueueDispatchersOfAKeyTakeTurns(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	cfg := outbox.Config{To: "q", Queues: map[string]string{"q": "q"}}
	for _, bucket := range []int{0, 1, 63} {
		key := ""
		for i := 0; key == "" || outbox.Bucket(key, 64) != bucket; i++ {
			key = fmt.Sprint("k", i)
		}
		std, err := outbox.New(db.SQL(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		out := newOutbox(t, db, cfg)
		first, err := db.SQL().Pool().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := std.Dispatch(t.Context(), first, order{key, 0}); err != nil {
			t.Fatal(err)
		}
		second, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			if _, err := out.Dispatch(context.Background(), second, order{key, 1}); err != nil {
				done <- err
				return
			}
			done <- second.Commit(context.Background())
		}()
		await(t, fmt.Sprintf("bucket %d: the second dispatcher waits", bucket), 60*time.Second, func() bool {
			return count(t, db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 1
		})
		if err := first.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// Retries and releases are no lost leases.
func TestOnlyALostLeaseMarksADeliveryAsRedelivered(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		dying, q := newQueue(t, db, "q", waypg.QueueConfig{Lease: time.Second}), newQueue(t, db, "q", waypg.QueueConfig{})
		local(t, db, order{"x", 0})
		take := func(from *waypg.Queue, what string, want bool) *waybill.Delivery {
			t.Helper()
			d := receiveSome(t, from, 1)[0]
			if d.Redelivered != want {
				t.Errorf("%s: Redelivered = %v, want %v", what, d.Redelivered, want)
			}
			return d
		}
		first := take(q, "new", false)
		if err := q.Retry(t.Context(), first, 0); err != nil {
			t.Fatal(err)
		}
		if err := q.Release(t.Context(), take(q, "after a retry", false)); err != nil {
			t.Fatal(err)
		}
		take(dying, "after a release", false)
		if err := q.Release(t.Context(), take(q, "after a lost lease", true)); err != nil {
			t.Fatal(err)
		}
		take(q, "after a release of a redelivered message", false)
	})
}

// Transactions that settle lock rows in ascending order, whatever the order of the messages: while one
// waits for the first row, it has locked none behind it.
func TestSettlingLocksRowsInAscendingOrder(t *testing.T) {
	db := open(t, testserver.Postgres, waypg.Config{})
	retries, err := db.RetryQueue("q")
	if err != nil {
		t.Fatal(err)
	}
	for table, q := range map[string]waybill.Receiver{"waybill_queue": newQueue(t, db, "q", waypg.QueueConfig{}), "waybill_retry": retries} {
		for verb, settle := range map[string]func([]*waybill.Delivery) error{
			"ack":     func(ds []*waybill.Delivery) error { return q.Ack(t.Context(), ds...) },
			"release": func(ds []*waybill.Delivery) error { return q.Release(t.Context(), ds...) },
			"renew":   func(ds []*waybill.Delivery) error { _, err := q.Renew(t.Context(), ds...); return err },
		} {
			exec(t, db, "DELETE FROM "+table)
			exec(t, db, "INSERT INTO "+table+" (queue, message_id, message_name, body) SELECT 'q', gen_random_uuid(), 'order.placed', '{}' FROM generate_series(1, 3)")
			ds, err := q.Receive(t.Context(), 3)
			if err != nil || len(ds) != 3 {
				t.Fatal(len(ds), err)
			}
			slices.Reverse(ds)
			tx, err := db.Pool().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "SELECT FROM "+table+" ORDER BY id LIMIT 1 FOR UPDATE"); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- settle(ds) }()
			await(t, verb+" waits", 10*time.Second, func() bool {
				return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
			})
			if free := count(t, db, "SELECT count(*) FROM (SELECT FROM "+table+" FOR UPDATE SKIP LOCKED) AS f"); free != 2 {
				t.Errorf("%s of %s has locked %d rows behind the first, want none", verb, table, 2-free)
			}
			if err := errors.Join(tx.Rollback(t.Context()), <-done); err != nil {
				t.Errorf("%s of %s = %v", verb, table, err)
			}
		}
	}
}

// The first statement after a change of a column's type fails, as its plan was prepared before: a worker
// does not end by it.
func TestReceiverOutlivesAChangeOfATable(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	q := newQueue(t, db, "q", waypg.QueueConfig{})
	receive := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Send(ctx, record(t, order{"k", 0})); err != nil {
			return err
		}
		ds, err := q.Receive(ctx, 10)
		if err != nil {
			return err
		}
		return q.Ack(t.Context(), ds...)
	}
	for range 5 { // on each connection
		if err := receive(); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, "ALTER TABLE waybill_queue ALTER COLUMN message_name TYPE varchar(190)")
	for try := range 5 {
		if err := receive(); err != nil && !errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("try %d after the change: %v, want nil or ErrUnavailable", try, err)
		}
	}
	if err := receive(); err != nil {
		t.Error(err)
	}
}
