package waymysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

const insertKeyed = "INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body) SELECT id, ?, UNHEX(REPLACE(UUID(), '-', '')), 'order.placed', ?, ? FROM waybill_transport"

// entries makes n blocked keys with a row each.
func entries(t testing.TB, db *waymysql.DB, n int, state string) {
	t.Helper()
	set := 0
	if state == "parked" {
		set = 1024
	}
	exec(t, db, fmt.Sprintf(`INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body)
		SELECT t.id, CONV(LEFT(SHA2(CONCAT('b', s.seq), 256), 4), 16, 10) %% 64 + %d, UNHEX(LEFT(SHA2(s.seq, 256), 32)), 'order.placed', CONCAT('b', s.seq), CONCAT('{"key":"b', s.seq, '","seq":0}')
		FROM waybill_transport AS t JOIN %s AS s`, set, numbers(n)))
	exec(t, db, `INSERT INTO waybill_outbox_blocked (transport, partition_key, row_id, bucket, message_id, message_name, failures, first_failed_at, next_attempt_at, last_error, state)
		SELECT transport, partition_key, id, bucket % 1024, message_id, message_name, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE, 'x', ? FROM waybill_outbox WHERE partition_key LIKE 'b%'`, state)
}

// The client closes a connection whose context ends, at times just as a statement has
// succeeded: a claim that returns rows can be settled.
func TestClaimThatReturnsIsAlive(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db)
	entries(t, db, 10, "retrying")
	exec(t, db, insertKeyed, outbox.Bucket("k", 64), []byte("k"), `{"key":"k","seq":0}`)
	const enough = 200 // or, on a busy machine, as many as return in a minute
	limit, returned := time.Millisecond, 0
	for until := time.Now().Add(time.Minute); returned < enough && (returned == 0 || time.Now().Before(until)); {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		c, err := db.Claim(ctx, outbox.DefaultTransport, outbox.Keyed, outbox.ClaimLimit{Rows: 10, Bytes: 1 << 20})
		if err != nil || len(c.Rows()) == 0 {
			limit += limit / 20
			cancel()
			continue
		}
		limit -= limit / 20
		returned++
		<-ctx.Done() // the client may still have heard of it
		if err := c.Settle(t.Context(), nil, nil); err != nil {
			t.Fatalf("claim %d, with %d rows: %v", returned, len(c.Rows()), err)
		}
		cancel()
	}
}

// A row that does not fit ends its bucket: a smaller one behind it must not overtake it.
func TestRowBehindOneThatDoesNotFitIsLeft(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db)
	for i, size := range []int{900 << 10, 900 << 10, 900 << 10, 10} {
		exec(t, db, insertKeyed, outbox.Bucket("k", 64), []byte("k"), fmt.Sprintf(`{"key":"k","seq":%d,"x":"%s"}`, i, strings.Repeat("x", size)))
	}
	want := 0
	for range 4 {
		c := claim(t, db, outbox.ClaimLimit{Rows: 100, Bytes: 2 << 20})
		for _, row := range c.Rows() {
			if o := bodyOf(row.Record); o.Seq != want {
				t.Errorf("%d came, want %d", o.Seq, want)
			}
			want++
		}
		settle(t, c, c.Rows())
	}
	if want != 4 {
		t.Errorf("%d came, want 4", want)
	}
}

// The server sends at most twice the bodies that a relay publishes, also while it does
// not know their size.
func TestLargeBodiesAreReadOnce(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	put(t, db)
	const n, size = 100, 300 << 10
	for i := range n {
		exec(t, db, insertKeyed, outbox.Bucket(fmt.Sprint("k", i), 64), []byte(fmt.Sprint("k", i)), fmt.Sprintf(`{"key":"k%d","seq":0,"x":"%s"}`, i, strings.Repeat("x", size)))
	}
	sent := counted(t, db, func() {
		for got := 0; got < n; {
			c := claim(t, db, outbox.ClaimLimit{Rows: 500, Bytes: 2 << 20})
			got += len(c.Rows())
			settle(t, c, c.Rows())
		}
	}, "Bytes_sent")
	if sent > 2*n*size {
		t.Errorf("the server sent %d bytes for %d", sent, n*size)
	}
}

// A first dispatch in a transaction of the application's does not use the pool, whose only
// connection it has; nor does a dispatch after the number of buckets has changed.
func TestDispatchInATransactionNeedsNoOtherConnection(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	db.Pool().SetMaxOpenConns(1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	dispatch := func(o order) error {
		tx, err := db.Pool().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, "SELECT value FROM waybill_meta"); err != nil { // the snapshot
			return err
		}
		if _, err := out.Dispatch(ctx, tx, o); err != nil {
			return err
		}
		return tx.Commit()
	}
	if err := dispatch(order{"k", 0}); err != nil {
		t.Fatalf("the first dispatch = %v", err)
	}
	for i, buckets := range []int{128, 64} {
		if _, err := open(t, dsn, waymysql.Config{}).Rebucket(t.Context(), buckets, false); err != nil {
			t.Fatal(err)
		}
		err := dispatch(order{"k", i + 1})
		if errors.Is(err, outbox.ErrBucketsChanged) {
			err = dispatch(order{"k", i + 1})
		}
		if err != nil {
			t.Errorf("with %d buckets: %v", buckets, err)
		}
	}
	if got := drained(t, open(t, dsn, waymysql.Config{})); len(got) != 3 {
		t.Errorf("published %v", got)
	}
}

// Messages without a key that wait cost other claims nothing.
func TestUnkeyedRowsThatWaitCostOthersNothing(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	put(t, db, order{"", 0})
	bulk(t, db, 20_000, 0)
	exec(t, db, "UPDATE waybill_outbox_unkeyed SET held = 1 WHERE id > 0")
	exec(t, db, `INSERT INTO waybill_outbox_blocked (transport, route, row_id, bucket, message_id, message_name, failures, first_failed_at, next_attempt_at, last_error)
		SELECT transport, message_name, id, -1, message_id, message_name, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE, 'x' FROM waybill_outbox_unkeyed WHERE id > 0 ORDER BY id LIMIT 1`)
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed, outbox.Retries} {
		for range 30 { // held rows are read once
			settle(t, claimPart(t, db, part, manyRows), nil)
		}
		if n := rowsRead(t, db, func() {
			if c := claimPart(t, db, part, manyRows); len(c.Rows()) > 0 {
				t.Errorf("%v: %d rows", part, len(c.Rows()))
			}
		}); n > 2000 {
			t.Errorf("a claim of %v reads %d rows", part, n)
		}
	}
}

// A hundred thousand blocked keys cost a claim of other keys little.
func TestManyBlockedKeysCostLittle(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	put(t, db, order{"k", 0})
	drained(t, db)
	entries(t, db, 100_000, "parked")
	put(t, db, order{"k", 1}, order{"l", 1})
	read := rowsRead(t, db, func() {
		c := claim(t, db, manyRows)
		if len(c.Rows()) != 2 {
			t.Errorf("%d rows", len(c.Rows()))
		}
		settle(t, c, c.Rows())
		settle(t, claimPart(t, db, outbox.Retries, manyRows), nil)
	})
	if read > 3000 {
		t.Errorf("a claim reads %d rows", read)
	}
}

// A list of all of them reads the outbox once, whatever the statistics say.
func TestListOfManyBlockedKeysReadsTheOutboxOnce(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	put(t, db, order{"k", 0})
	drained(t, db)
	const n = 5000
	entries(t, db, n, "retrying")
	for range 2 {
		read := rowsRead(t, db, func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if all, err := db.Blocked(ctx, outbox.DefaultTransport, 2*n); err != nil || len(all) != n {
				t.Errorf("%d keys, %v", len(all), err)
			}
		})
		if read > 20*n {
			t.Errorf("a list of %d keys reads %d rows", n, read)
		}
		exec(t, db, "ANALYZE TABLE waybill_outbox, waybill_outbox_blocked")
	}
}

// A delayed message that the outbox refuses is set aside, and holds up no other.
func TestDelayedMessageThatIsRefusedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	exec(t, db, "ALTER TABLE waybill_outbox ADD CHECK (message_name <> 'bad')")
	if err := out.InTx(t.Context(), func(ctx context.Context, tx waymysql.Tx) error {
		for i := range 10 {
			if _, err := tx.Dispatch(ctx, order{"k", i}, waybill.Delay(time.Duration(i+1)*time.Millisecond)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "UPDATE waybill_delayed SET message_name = 'bad' ORDER BY id LIMIT 1")
	time.Sleep(20 * time.Millisecond)
	got := drained(t, db)
	if len(got) != 9 || got[0].Seq != 1 {
		t.Errorf("published %v", got)
	}
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{Pending: 1, Blocked: 1}) {
		t.Errorf("Backlog = %+v, %v", left, err)
	}
}

// Nor is any other promoted twice, where a statement for another table has had its effect.
func TestPromotionBesideARefusalHappensOnce(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	drained(t, db)
	const rounds = 8 // the tables have no order
	for range rounds {
		exec(t, db, `INSERT INTO waybill_delayed (due_at, transport, queue, message_id, message_name, partition_key, body)
			SELECT UTC_TIMESTAMP(6), t.id, NULL, RANDOM_BYTES(16), 'order.placed', 'k', '{}' FROM waybill_transport AS t
			UNION ALL SELECT UTC_TIMESTAMP(6), NULL, '', RANDOM_BYTES(16), 'order.placed', 'k', '{}'`)
		settle(t, claim(t, db, manyRows), nil)
	}
	if n, refused := count(t, db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"), count(t, db, "SELECT COUNT(*) FROM waybill_delayed WHERE refused"); n != rounds || refused != rounds {
		t.Errorf("%d messages were promoted and %d refused, want %d of each", n, refused, rounds)
	}
}

// A release that was interrupted has brought the head back, whose key is still parked.
func TestSkipHeadAfterAnInterruptedRelease(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0}, order{"k", 1}, order{"k", 2}, order{"k", 3})
	c := claim(t, db, manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	exec(t, db, "UPDATE waybill_outbox SET bucket = bucket - 1024 WHERE id > 0 ORDER BY id LIMIT 2")
	if n, err := db.Release(t.Context(), admin.BlockedQuery{Key: "k", SkipHead: true}); err != nil || n != 1 {
		t.Fatalf("Release = %d, %v", n, err)
	}
	letters, err := db.Failed(t.Context(), admin.FailedQuery{})
	if got := drained(t, db); err != nil || len(letters) != 1 || letters[0].ID != c.Rows()[0].Record.ID || fmt.Sprint(got) != "[{k 1} {k 2} {k 3}]" {
		t.Errorf("dead letters %+v, %v, and %v is published: want k0, and the rest", letters, err, got)
	}
}

// Many large messages that are due at once do not make dispatchers wait, and no claim.
func TestManyLargeDelayedMessagesAreMovedInParts(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db)
	exec(t, db, `INSERT INTO waybill_delayed (due_at, transport, message_id, message_name, partition_key, body)
		SELECT UTC_TIMESTAMP(6), t.id, UNHEX(LEFT(SHA2(s.seq, 256), 32)), 'order.placed', CONCAT('d', s.seq), REPEAT('x', 1000000) FROM waybill_transport AS t JOIN `+numbers(60)+` AS s`)
	c := claim(t, db, manyRows)
	settle(t, c, nil)
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); n == 0 || n > 5 {
		t.Errorf("one claim promoted %d MB, want at most 4 MiB", n)
	}
}

// Bucket rows that are not as many as recorded, or missing, are mended.
func TestWrongBucketsAreMended(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"too few":  "DELETE FROM waybill_outbox_bucket WHERE bucket >= 16",
		"too many": "INSERT INTO waybill_outbox_bucket (transport, bucket) SELECT t.id, 63 + s.seq FROM waybill_transport AS t JOIN " + numbers(64) + " AS s",
		"none":     "INSERT INTO waybill_transport (name) VALUES ('events')",
	} {
		db, dsn := newDB(t, waymysql.Config{})
		put(t, db, order{"k", 0})
		exec(t, db, change)
		if _, err := open(t, dsn, waymysql.Config{}).SchemaStatus(t.Context()); !errors.Is(err, admin.ErrSchema) {
			t.Errorf("%s: SchemaStatus = %v, want ErrSchema", name, err)
		}
		if _, err := open(t, dsn, waymysql.Config{}).SchemaUp(t.Context()); err != nil {
			t.Errorf("%s: SchemaUp = %v", name, err)
		}
		if got := drained(t, open(t, dsn, waymysql.Config{})); len(got) != 1 {
			t.Errorf("%s: published %v", name, got)
		}
	}
}

// Cold keys of a hot key's bucket do not wait for its backlog.
func TestHotKeyDoesNotHoldUpItsBucket(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	keys := sameBucket(2)
	var msgs []any
	for i := range 2000 {
		msgs = append(msgs, order{keys[0], i})
	}
	put(t, db, append(msgs, order{keys[1], 0})...)
	for claims := 1; ; claims++ {
		c := claim(t, db, outbox.ClaimLimit{Rows: 100, Bytes: 1 << 20})
		cold := false
		for _, row := range c.Rows() {
			cold = cold || row.Record.Key == keys[1]
		}
		settle(t, c, c.Rows())
		if cold && claims <= 4 {
			return
		}
		if cold || claims > 30 {
			t.Fatalf("the cold key came with claim %d", claims)
		}
	}
}

// A transaction under SERIALIZABLE that has dispatched by the procedure does not hold up
// a relay that records refusals.
func TestSerializableDispatcherHoldsUpNoSettle(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0}, order{"l", 0}, order{"", 0})
	tx, err := pool(t, dsn).BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, key := range []string{otherBuckets(1)[0], ""} {
		if _, err := tx.ExecContext(t.Context(), "CALL waybill_dispatch('x.y', ?, '{}', '')", key); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed} {
		c := claimPart(t, db, part, manyRows)
		var failed []outbox.Failure
		for _, row := range c.Rows() {
			failed = append(failed, outbox.Failure{Row: row, Err: errRefused, RetryIn: time.Hour, Route: part == outbox.Unkeyed})
		}
		if err := c.Settle(ctx, nil, failed); err != nil || len(failed) == 0 {
			t.Errorf("%v: Settle of %d = %v", part, len(failed), err)
		}
	}
}

// Rows in a bucket that no relay reads are counted as blocked.
func TestRowsInNoBucketAreBlocked(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	for _, bucket := range []int{70, -5, 2000} {
		exec(t, db, insertKeyed, bucket, []byte("x"), "{}")
	}
	if got := drained(t, db); len(got) != 1 {
		t.Errorf("published %v", got)
	}
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{Pending: 3, Blocked: 3}) {
		t.Errorf("Backlog = %+v, %v", left, err)
	}
}

// A retry that is due soon is tried soon, also when the server's clock went back.
func TestClockThatWentBackDelaysNothing(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	c := claim(t, db, manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, RetryIn: time.Minute})
	if c := claimPart(t, db, outbox.Retries, manyRows); len(c.Rows()) != 0 {
		t.Fatal("it is tried before it is due")
	}
	exec(t, db, "UPDATE waybill_outbox_blocked SET next_attempt_at = UTC_TIMESTAMP(6) + INTERVAL 2 HOUR")
	exec(t, db, "REPLACE INTO waybill_meta (name, value) VALUES ('relays_paused_until', UTC_TIMESTAMP(6) + INTERVAL 2 HOUR)")
	c = claimPart(t, db, outbox.Retries, manyRows)
	if len(c.Rows()) != 1 || c.Rows()[0].Failures != 1 {
		t.Errorf("claimed %v", c.Rows())
	}
	settle(t, c, c.Rows())
}

// Tables are made, and used, on a server whose sessions begin with autocommit off.
func TestAutocommitOffByDefaultChangesNothing(t *testing.T) {
	t.Parallel()
	dsn := driverDSN(t, testserver.StartMariaDB(t, map[string]string{"autocommit": "0"}).URL())
	db := open(t, dsn, waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, db, order{"k", 0}, order{"", 0})
	if got := drained(t, open(t, dsn, waymysql.Config{})); len(got) != 2 {
		t.Errorf("published %v", got)
	}
}

// Waybill's statements are text: MySQL's views of running statements fail for raw bytes,
// for all users.
func TestStatementsAreText(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	holder := begin(t, pool(t, dsn))
	if _, err := holder.Exec("SELECT bucket FROM waybill_outbox_gate WHERE transport > 0 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	out := newOutbox(t, db, outbox.Config{})
	go func() { done <- send(out, order{"k", 1}) }()
	var text []byte
	await(t, "the dispatcher waits", 60*time.Second, func() bool {
		err := db.Pool().QueryRow("SELECT info FROM information_schema.processlist WHERE info LIKE '%INSERT INTO%outbox%' AND id <> CONNECTION_ID() AND db = DATABASE()").Scan(&text)
		return err == nil
	})
	for _, b := range text {
		if b >= 0x80 || b == '?' {
			t.Errorf("the statement has byte %#x: %q", b, text)
			break
		}
	}
	commit(t, holder)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Three thousand parked keys come back in order, with messages dispatched meanwhile
// behind them.
func TestManyParkedKeysAreReleasedInOrder(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	drained(t, db)
	const n = 3000
	entries(t, db, n, "parked")
	exec(t, db, `INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body)
		SELECT transport, bucket % 1024, UNHEX(LEFT(SHA2(id, 256), 32)), 'order.placed', partition_key, CONCAT('{"key":"', partition_key, '","seq":1}') FROM waybill_outbox WHERE bucket >= 1024 AND id > 0 AND id % 3 = 0`)
	if got := drained(t, db); len(got) != 0 {
		t.Fatalf("%d came while they are parked", len(got))
	}
	start := time.Now()
	released, err := db.Release(t.Context(), admin.BlockedQuery{})
	if err != nil || released != n {
		t.Fatalf("Release = %d, %v", released, err)
	}
	t.Logf("released in %v", time.Since(start))
	if got := perKey(t, drained(t, db)); len(got) != n {
		t.Errorf("%d keys came, want %d", len(got), n)
	}
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left != (outbox.Backlog{}) {
		t.Errorf("Backlog = %+v, %v", left, err)
	}
}

// Sentinels that TRUNCATE has removed come back.
func TestSentinelsComeBack(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	drained(t, db)
	sentinels := "SELECT (SELECT COUNT(*) FROM waybill_outbox WHERE id = -1) + (SELECT COUNT(*) FROM waybill_outbox_unkeyed WHERE id = -1)"
	want := count(t, db, sentinels)
	exec(t, db, "DELETE FROM waybill_outbox")
	exec(t, db, "DELETE FROM waybill_outbox_unkeyed")
	var msgs []any
	for i := range 200 {
		msgs = append(msgs, order{fmt.Sprint("k", i), 0})
	}
	put(t, db, msgs...)
	await(t, "they are back", 60*time.Second, func() bool {
		drained(t, db)
		return count(t, db, sentinels) == want
	})
	if diff := cmp.Diff(130+2, want); diff != "" {
		t.Errorf("sentinels (-want +got):\n%s", diff)
	}
}
