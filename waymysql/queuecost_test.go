package waymysql_test

import (
	"context"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/waymysql"
)

// Rows that wait cost nothing: neither a claim and acknowledgement of another row, nor a
// look at a queue without one.
func TestWaitingRowsOfAQueueCostNothing(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	q, err := db.Queue("q", waymysql.QueueConfig{})
	if err != nil {
		t.Fatal(err)
	}
	const columns = "INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, body, held, held_until, holder) SELECT 'q', UNHEX(LEFT(SHA2(UUID(), 256), 32)), 'order.placed', "
	freshClaim, freshLook := queueCost(t, db, q)
	for name, fill := range map[string]string{
		"retries":       "IF(s.seq % 2, '', CONCAT('r', s.seq)), '{}', 1, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, NULL FROM ",
		"leased":        "CONCAT('l', s.seq), '{}', 1, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, UNHEX('01') FROM ",
		"behind a head": "'h', '{}', IF(s.seq = 1, 1, 0), IF(s.seq = 1, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, NULL), NULL FROM ",
	} {
		exec(t, db, columns+fill+numbers(20_000)+" AS s ORDER BY s.seq")
		if err := q.Send(t.Context(), record(t, order{"x", 0})); err != nil {
			t.Fatal(err)
		}
		if err := q.Ack(t.Context(), receiveOne(t, q)...); err != nil { // sets the rows aside
			t.Fatal(err)
		}
		claim, look := queueCost(t, db, q)
		t.Logf("%s: a claim and acknowledgement reads %d rows, without waiting rows %d; an empty look %d, %d", name, claim, freshClaim, look, freshLook)
		if claim > 3*freshClaim+20 || look > 3*freshLook+20 {
			t.Errorf("%s: %d and %d rows read, %d and %d without", name, claim, look, freshClaim, freshLook)
		}
	}
}

// A claim of a long queue reads its window, and sorts nothing.
func TestClaimOfALongQueueReadsItsWindow(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	q, err := db.Queue("q", waymysql.QueueConfig{})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, db, "INSERT INTO waybill_queue (queue, message_id, message_name, body) SELECT 'q', UNHEX(LEFT(SHA2(UUID(), 256), 32)), 'order.placed', '{}' FROM "+numbers(20_000)+" AS s")
	if read := rowsRead(t, db, func() { receiveOne(t, q) }); read > 500 {
		t.Errorf("a claim of one message of 20000 reads %d rows, want at most 500", read)
	}
}

func receiveOne(t testing.TB, q *waymysql.Queue) []*waybill.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ds, err := q.Receive(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// queueCost is how many rows the server reads for a message that comes and goes, and for
// looks of a quarter of a second at a queue without one.
func queueCost(t testing.TB, db *waymysql.DB, q *waymysql.Queue) (claim, look int) {
	t.Helper()
	const times = 20
	claim = rowsRead(t, db, func() {
		for range times {
			if err := q.Send(t.Context(), record(t, order{"live", 0})); err != nil {
				t.Fatal(err)
			}
			if err := q.Ack(t.Context(), receiveOne(t, q)...); err != nil {
				t.Fatal(err)
			}
		}
	})
	look = rowsRead(t, db, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		if ds, err := q.Receive(ctx, 1); err == nil {
			t.Fatalf("received %d messages", len(ds))
		}
	})
	return claim / times, look
}
