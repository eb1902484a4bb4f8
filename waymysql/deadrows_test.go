package waymysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// alone opens a database on a new server, whose counters no other test moves.
func alone(t testing.TB) (db *waymysql.DB, dsn string) {
	t.Helper()
	dsn = driverDSN(t, testserver.StartMariaDB(t, nil).URL())
	db = open(t, dsn, waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db, dsn
}

// holdSnapshot keeps the server from removing any row that is deleted from now
// on.
func holdSnapshot(t testing.TB, dsn string) {
	t.Helper()
	old, err := pool(t, dsn).BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = old.Rollback() })
	if _, err := old.Exec("SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); err != nil {
		t.Fatal(err)
	}
}

// bulk writes n rows: of a key of each of so many buckets in turn, or, with none,
// without a key.
func bulk(t testing.TB, db *waymysql.DB, n, buckets int) {
	t.Helper()
	if buckets == 0 {
		exec(t, db, "INSERT INTO waybill_outbox_unkeyed (transport, message_id, message_name, body) SELECT t.id, UNHEX(LEFT(SHA2(UUID(), 256), 32)), 'order.placed', '{}' FROM waybill_transport AS t JOIN "+numbers(n)+" AS s")
		return
	}
	exec(t, db, fmt.Sprintf("INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body) SELECT t.id, s.seq %% %d, UNHEX(LEFT(SHA2(UUID(), 256), 32)), 'order.placed', CONCAT('k', s.seq %% %[1]d), '{}' FROM waybill_transport AS t JOIN %s AS s", buckets, numbers(n)))
}

// pagesRead is how many pages do reads of the server.
func pagesRead(t testing.TB, db *waymysql.DB, do func()) int {
	t.Helper()
	return counted(t, db, do, "Innodb_buffer_pool_read_requests")
}

// pollCost is the median of the pages and the time that looks take which find
// nothing.
func pollCost(t testing.TB, db *waymysql.DB, looks int) (pages int, took time.Duration) {
	t.Helper()
	var all []int
	var times []time.Duration
	for range looks {
		all = append(all, pagesRead(t, db, func() {
			start := time.Now()
			c := claim(t, db, outbox.ClaimLimit{Rows: 500, Bytes: 4 << 20})
			times = append(times, time.Since(start))
			if n := len(c.Rows()); n > 0 {
				settle(t, c, nil)
				t.Fatalf("%d rows", n)
			}
		}))
	}
	slices.Sort(all)
	slices.Sort(times)
	return all[len(all)/2], times[len(times)/2]
}

// Published rows cost nothing, although the server keeps them for a session that reads
// an old state of the database: neither a look at an empty outbox, nor a claim of a few
// rows.
func TestDeadRowsCostNothing(t *testing.T) {
	t.Parallel()
	for name, buckets := range map[string]int{"with keys": 64, "without keys": 0} {
		t.Run(name, func(t *testing.T) {
			db, dsn := alone(t)
			put(t, db, order{"k", 0}, order{"", 0})
			drain(t, db, &recorder{}, outbox.RelayConfig{})
			fresh, freshTime := pollCost(t, db, 100)
			before := few(t, db)

			holdSnapshot(t, dsn)
			bulk(t, db, 200_000, buckets)
			for _, table := range []string{"waybill_outbox", "waybill_outbox_unkeyed"} {
				exec(t, db, "DELETE FROM "+table+" WHERE id > 0") // as if by other relays
			}
			first, firstTime := pollCost(t, db, 1)
			for start := time.Now(); time.Since(start) < 2*time.Second; { // positions are raised once a second
				pollCost(t, db, 5)
			}
			dead, deadTime := pollCost(t, db, 100)
			t.Logf("an empty look reads %d pages in %v, the first with 200,000 dead rows %d in %v, and later ones %d in %v", fresh, freshTime, first, firstTime, dead, deadTime)
			if dead > 4*fresh { // the larger index has a level more
				t.Errorf("%d pages with dead rows, %d without", dead, fresh)
			}
			if afterwards := few(t, db); afterwards > 5*before {
				t.Errorf("three messages cost %d pages with dead rows, %d without", afterwards, before)
			}
		})
	}
}

// few is the median of the pages that are read for three messages that come and go: two
// of buckets between others that are empty, and one without a key. Once a second a read
// begins at the start of the table of messages without a key.
func few(t testing.TB, db *waymysql.DB) int {
	t.Helper()
	all := make([]int, 30)
	for i := range all {
		all[i] = pagesRead(t, db, func() {
			put(t, db, order{"k", 0}, order{otherBuckets(1)[0], 0}, order{"", 0})
			for n := 0; n < 3; {
				c := claim(t, db, outbox.ClaimLimit{Rows: 500, Bytes: 4 << 20})
				n += len(c.Rows())
				settle(t, c, c.Rows())
			}
		})
	}
	slices.Sort(all)
	t.Logf("three messages cost %d pages", all[len(all)/2])
	return all[len(all)/2]
}

// Messages pass while a snapshot from before is held: the last are claimed as
// fast as the first, also from the start of every bucket.
func TestClaimsStayFlatWhilePurgeIsHeldUp(t *testing.T) {
	t.Parallel()
	db, dsn := alone(t)
	put(t, db, order{"k", 0})
	drain(t, db, &recorder{}, outbox.RelayConfig{})
	holdSnapshot(t, dsn)
	const rounds, each = 20, 10_000
	var pages [rounds]int
	var times [rounds]time.Duration
	for i := range rounds {
		bulk(t, db, each, 64)
		pages[i] = pagesRead(t, db, func() {
			start := time.Now()
			for left := each; left > 0; {
				c := claim(t, db, outbox.ClaimLimit{Rows: 500, Bytes: 4 << 20})
				left -= len(c.Rows())
				settle(t, c, c.Rows())
			}
			times[i] = time.Since(start)
		})
	}
	t.Logf("pages %v, times %v", pages, times)
	if first, last := pages[0], pages[rounds-1]; last > 2*first {
		t.Errorf("the last %d messages cost %d pages, the first %d", each, last, first)
	}
}

// Once a claim has read past a blocked key, the number of rows that the database
// reads for other keys does not depend on the number of rows behind it.
func TestRowsBehindABlockedKeyAreReadOnce(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	const followers, rounds = 100_000, 20
	bad, good := keysOf63(2), otherBuckets(5)
	put(t, db, order{bad[0], 0})
	c := claim(t, db, manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, RetryIn: time.Hour})
	exec(t, db, fmt.Sprintf("INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body) SELECT l.id, 63, UNHEX(LEFT(SHA2(UUID(), 256), 32)), 'order.placed', '%s', '{}' FROM waybill_transport AS l JOIN %s AS s", bad[0], numbers(followers)))
	pass := func() {
		t.Helper()
		msgs := []any{order{bad[1], 0}} // of its bucket
		for _, key := range good {
			msgs = append(msgs, order{key, 0})
		}
		put(t, db, msgs...)
		for n := 0; n < len(msgs); {
			c := claim(t, db, manyRows)
			if n += len(c.Rows()); len(c.Rows()) == 0 {
				t.Fatalf("%d rows came beside the blocked key, want %d", n, len(msgs))
			}
			settle(t, c, c.Rows())
		}
	}
	cold := rowsRead(t, db, pass)
	pass()
	warm := rowsRead(t, db, func() {
		for range rounds {
			pass()
		}
	})
	t.Logf("%d rows are read at first, then %d for each %d", cold, warm/rounds, 1+len(good))
	if cold < followers {
		t.Errorf("%d rows are read at first, want all %d: this proves nothing", cold, followers)
	}
	if warm/rounds > 2000 {
		t.Errorf("%d rows are read for %d", warm/rounds, 1+len(good))
	}
}

// More blocked keys of a bucket than a statement has by name are looked up, and their
// rows are read past once.
func TestManyBlockedKeysOfABucketAreLookedUp(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	keys := keysOf63(31)
	bad, good := keys[:30], keys[30]
	send := func(seq int) {
		var msgs []any
		for _, key := range bad {
			msgs = append(msgs, order{key, seq})
		}
		put(t, db, msgs...)
	}
	send(0)
	c := claim(t, db, manyRows)
	var failed []outbox.Failure
	for _, row := range c.Rows() {
		failed = append(failed, outbox.Failure{Row: row, Err: errRefused, RetryIn: time.Hour})
	}
	settle(t, c, nil, failed...)
	for seq := range 10 {
		send(seq + 1)
	}
	put(t, db, order{good, 0})
	c = claim(t, db, manyRows)
	if len(c.Rows()) != 1 || c.Rows()[0].Record.Key != good {
		t.Fatalf("%d rows, want the one of the key that is not blocked", len(c.Rows()))
	}
	settle(t, c, c.Rows())
	send(11)
	for range 2 { // the position moves behind rows that no claim returns
		if c := claim(t, db, manyRows); len(c.Rows()) != 0 {
			t.Errorf("%d rows of blocked keys", len(c.Rows()))
		}
	}
	if read := rowsRead(t, db, func() { claim(t, db, manyRows) }); read > 400 {
		t.Errorf("a claim behind blocked rows reads %d rows", read)
	}
}

// A search for a message and those that it has caused reads the newest of each table, however
// many there are.
func TestSearchReadsTheNewestAlone(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	put(t, db, order{"k", 0})
	exec(t, db, "INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body) SELECT l.id, s.seq % 64, UNHEX(LEFT(SHA2(UUID(), 256), 32)), 'order.placed', 'k', '{}' FROM waybill_transport AS l JOIN "+numbers(20_000)+" AS s")
	exec(t, db, "ANALYZE TABLE waybill_outbox")
	rec := record(t, order{"k", 1})
	if read := rowsRead(t, db, func() {
		if _, err := db.FindMessages(t.Context(), rec.ID, 100); err != nil {
			t.Fatal(err)
		}
	}); read > 2000 {
		t.Errorf("a search of 100 messages reads %d rows", read)
	}
}

// keysOf63 returns n keys of the bucket that is the last to be looked at from
// its start.
func keysOf63(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("l", i, "-"); outbox.Bucket(key, 64) == 63 {
			keys = append(keys, key)
		}
	}
	return keys
}

// The list of the outbox reads a page of the delayed messages, those that were refused behind
// the others.
func TestPageOfDelayedMessagesReadsNoOthers(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	exec(t, db, "INSERT INTO waybill_delayed (refused, due_at, queue, message_id, message_name, partition_key, body) SELECT s.seq % 2, UTC_TIMESTAMP(6) + INTERVAL s.seq HOUR, 'q', UNHEX(LEFT(SHA2(UUID(), 256), 32)), 'order.placed', CONCAT('k', s.seq), '{}' FROM "+numbers(20_000)+" AS s")
	q := admin.OutboxQuery{Limit: 50}
	for range 3 {
		var page []admin.OutboxMessage
		read := counted(t, db, func() {
			var err error
			if page, err = db.Outbox(t.Context(), q); err != nil || len(page) != 50 || page[0].Blocked {
				t.Fatalf("Outbox = %d messages, %v, want 50", len(page), err)
			}
		}, "Handler_read_first", "Handler_read_key", "Handler_read_next", "Handler_read_rnd_next", "Handler_read_rnd")
		if read > 1000 {
			t.Errorf("a page of 50 of 20000 delayed messages reads %d rows", read)
		}
		q.Behind = &page[49]
	}
	seen := map[int64]bool{}
	q = admin.OutboxQuery{Limit: 3000}
	for page := make([]admin.OutboxMessage, 3000); len(page) == 3000; q.Behind = &page[len(page)-1] {
		var err error
		if page, err = db.Outbox(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		for _, m := range page {
			if m.Blocked != (len(seen) >= 10_000) {
				t.Fatalf("message %d is %+v", len(seen), m)
			}
			seen[m.Row] = true
		}
	}
	if len(seen) != 20_000 {
		t.Errorf("the pages have %d messages, want 20000", len(seen))
	}
}

// rowsRead is how many rows of all tables do has the server read.
func rowsRead(t testing.TB, db *waymysql.DB, do func()) int {
	t.Helper()
	return counted(t, db, do, "Handler_read_first", "Handler_read_key", "Handler_read_last", "Handler_read_next", "Handler_read_prev")
}

// A transaction that got its id early commits after relays have read higher ids:
// in a bucket that was empty, and without a key.
func TestLateCommitOfALowIdIsNotOverlooked(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	keys := otherBuckets(3)
	sink := &recorder{}
	relaying(t, db, sink, outbox.RelayConfig{})
	if err := send(out, order{keys[0], 0}); err != nil {
		t.Fatal(err)
	}
	await(t, "the relay is at work", 60*time.Second, func() bool { return len(sink.all()) == 1 })
	want := 1
	for round := range 2 {
		keyed, unkeyed := begin(t, pool(t, dsn)), begin(t, pool(t, dsn))
		if _, err := out.Dispatch(t.Context(), keyed, order{keys[1], round}); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Dispatch(t.Context(), unkeyed, order{"", round}); err != nil {
			t.Fatal(err)
		}
		for i := range 30 { // others pass, for some surveys
			if err := send(out, order{keys[2], 30*round + i}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if round == 1 { // and the horizon is moved over them
			far := begin(t, db.Pool())
			if _, err := far.ExecContext(t.Context(), "INSERT INTO waybill_outbox (transport, bucket, id, message_id, message_name, partition_key, body) SELECT id, 0, 1000000, UNHEX(REPEAT('00', 16)), 'x', '', '' FROM waybill_transport"); err != nil {
				t.Fatal(err)
			}
			if err := far.Rollback(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				time.Sleep(1100 * time.Millisecond)
				if err := send(out, order{"far", want}); err != nil {
					t.Fatal(err)
				}
				want++
			}
		}
		want += 30
		await(t, "the others have come", 60*time.Second, func() bool { return len(sink.all()) == want })
		start := time.Now()
		commit(t, keyed)
		await(t, "the late one with a key comes", 60*time.Second, func() bool { return len(sink.all()) == want+1 })
		t.Logf("the late one with a key came after %v", time.Since(start))
		start = time.Now()
		commit(t, unkeyed)
		await(t, "the late one without a key comes", 60*time.Second, func() bool { return len(sink.all()) == want+2 })
		t.Logf("the late one without a key came after %v", time.Since(start))
		want += 2
	}
}

// Reads of messages without a key that begin at the start of the table take at most a twentieth of the
// time, also while each claim finds a message.
func TestSlowReadsFromTheStartAreRare(t *testing.T) {
	t.Parallel()
	direct, dsn := newDB(t, waymysql.Config{})
	exec(t, direct, "ALTER TABLE waybill_outbox_unkeyed AUTO_INCREMENT = 5000") // above the margin of a position
	through, network := proxied(t, dsn)
	db := open(t, through, waymysql.Config{})
	const slow = 200 * time.Millisecond
	var reads atomic.Int64
	network.OnBytes(func(_ faultproxy.Direction, b []byte) faultproxy.Action {
		if bytes.Contains(b, []byte("AND held = 0 AND id > 0")) {
			reads.Add(1)
			time.Sleep(slow) // as beside many dead rows
		}
		return faultproxy.Pass
	})
	begun := time.Now()
	for time.Since(begun) < 5*time.Second {
		put(t, direct, order{"", 0})
		c := claimPart(t, db, outbox.Unkeyed, manyRows)
		if len(c.Rows()) != 1 {
			t.Fatalf("%d rows, want 1", len(c.Rows()))
		}
		settle(t, c, c.Rows())
	}
	took := time.Since(begun)
	if got, most := reads.Load(), 1+int64(took/(20*slow)); got < 1 || got > most {
		t.Errorf("%d reads of %v from the start in %v, want 1 to %d", got, slow, took, most)
	}
}
