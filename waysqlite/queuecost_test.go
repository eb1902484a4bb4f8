package waysqlite_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/waysqlite"
)

// Rows that wait cost nothing: neither a claim and acknowledgement of another row, nor a
// look at a queue without one.
func TestWaitingRowsOfAQueueCostNothing(t *testing.T) {
	db := open(t, waysqlite.Config{Normal: true})
	q := newQueue(t, db, "q", waysqlite.QueueConfig{})
	const columns = `WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 20000)
		INSERT INTO waybill_queue (queue, message_id, message_name, partition_key, body, held, held_until, holder)
		SELECT 'q', randomblob(16), 'order.placed', `
	fresh := queueCost(t, db, q)
	for name, fill := range map[string]string{
		"retries":       "iif(i % 2, '', 'r' || i), x'7b7d', 1, 9e15, NULL FROM s",
		"leased":        "'l' || i, x'7b7d', 1, 9e15, x'01' FROM s",
		"behind a head": "'h', x'7b7d', iif(i = 1, 1, 0), iif(i = 1, 9e15, 0), NULL FROM s",
	} {
		if _, err := db.SQL().Exec(columns + fill); err != nil {
			t.Fatal(err)
		}
		local(t, db, order{name, 0})
		receive(t, q, 1) // sets the rows aside
		cost := queueCost(t, db, q)
		t.Logf("%s: a claim and acknowledgement takes %v, without waiting rows %v", name, cost, fresh)
		if cost > 4*fresh+time.Millisecond {
			t.Errorf("%s: a claim and acknowledgement takes %v, without waiting rows %v", name, cost, fresh)
		}
	}
}

// queueCost is the least time that a message takes to come and go.
func queueCost(t testing.TB, db *waysqlite.DB, q *waysqlite.Queue) time.Duration {
	t.Helper()
	least := time.Hour
	for range 30 {
		local(t, db, order{"live", 0})
		start := time.Now()
		if err := q.Ack(t.Context(), receive(t, q, 1)...); err != nil {
			t.Fatal(err)
		}
		least = min(least, time.Since(start))
	}
	return least
}
