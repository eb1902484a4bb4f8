package waypg

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/internal/testserver"
	"github.com/waybill-go/waybill/outbox"
)

// An operator lets a key go in the moment between a claim's look at what waits
// and its look at the rows: the claim would begin behind the key's head.
func TestKeyThatIsLetGoDuringAClaimIsReadFromItsHead(t *testing.T) {
	ctx := t.Context()
	db, err := Open(ctx, testserver.Postgres(t), Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.SchemaUp(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := outbox.New(db, outbox.Config{}); err != nil {
		t.Fatal(err)
	}
	bucket := outbox.Bucket("k", outbox.DefaultBuckets)
	insert := func() {
		t.Helper()
		if _, err := db.pool.Exec(ctx, "INSERT INTO waybill_outbox (lane, bucket, message_id, message_name, partition_key, body) VALUES (1, $1, gen_random_uuid(), 'x', 'k', '')", bucket); err != nil {
			t.Fatal(err)
		}
	}
	all := outbox.Max{Rows: 100, Bytes: 1 << 20}
	take := func() outbox.Claim {
		t.Helper()
		c, err := db.Claim(ctx, "default", all)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	insert()
	insert()
	c := take()
	if err := c.Settle(ctx, nil, []outbox.Failure{{Row: c.Rows()[0], Err: fmt.Errorf("no"), RetryIn: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	if n := len(take().Rows()); n != 0 { // and the cursor stands behind both
		t.Fatalf("%d rows of a key that waits", n)
	}
	insert()

	p, err := db.ready(ctx)
	if err != nil {
		t.Fatal(err)
	}
	operator, err := db.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Rollback(context.Background())
	if _, err := operator.Exec(ctx, p.admin.Query("release_bump"), ""); err != nil {
		t.Fatal(err)
	}
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l := db.lane(1)
	under := &claim{Batch: lane.NewBatch(l), holder: holder{db, p, conn}}
	defer under.end()
	locked, now, err := under.lock(ctx, all, []int16{})
	if err != nil || len(locked) != 1 || !l.Serves(under.View, now) {
		t.Fatalf("locked %v, %v", locked, err)
	}
	if _, err := operator.Exec(ctx, p.admin.Query("release"), "", "k", "", int64(0)); err != nil {
		t.Fatal(err)
	}
	if err := operator.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	again, err := under.readBuckets(ctx, locked, all, new([]int16))
	if err != nil || !again || len(under.Batch.Rows) != 0 {
		t.Errorf("readBuckets = %v, %v with %d rows, want to begin again", again, err, len(under.Batch.Rows))
	}
	under.end()
	c = take()
	defer c.Settle(ctx, nil, nil)
	if n := len(c.Rows()); n != 3 {
		t.Errorf("then %d rows, want 3", n)
	}
}
