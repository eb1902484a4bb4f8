package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// namesOf names the rows of a claim, as in "a1 b1". It sorts by key, because rows
// have an order only within a key.
func namesOf(rows []outbox.ClaimedRow) string {
	all := map[string]string{}
	for _, row := range rows {
		o := bodyOf(row.Record)
		all[o.Key] += fmt.Sprint(o.Key, o.Seq, " ")
	}
	names := ""
	for _, key := range slices.Sorted(maps.Keys(all)) {
		names += all[key]
	}
	return strings.TrimSpace(names)
}

// sameBucket returns n keys that share a bucket.
func sameBucket(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("s", i, "-"); outbox.Bucket(key, 64) == 7 {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// otherBuckets returns n keys with a bucket each.
func otherBuckets(n int) (keys []string) {
	taken := map[int]bool{7: true}
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("o", i, "-")
		if b := outbox.Bucket(key, 64); !taken[b] {
			taken[b] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// The stale snapshot: a relay whose read of the buckets is older than another
// relay's commit must not publish the rows that the other one has published,
// whatever isolation the database is set to.
func TestClaimSeesWhatTheLastOwnerHasPublishedAtAnyIsolation(t *testing.T) {
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			everywhere(t, func(t *testing.T, at opener) {
				dsn := at(t)
				openAt(t, dsn, waypg.Config{})
				setup := connect(t, dsn, waypg.Config{})
				exec(t, setup, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '"+level+"'); END $$")
				// A pooler keeps sessions that began before.
				exec(t, setup, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
				setup.Pool().Reset()
				db := connect(t, dsn, waypg.Config{})
				for range 200 {
					_ = db.Pool().Ping(t.Context())
					var got string
					if err := db.Pool().QueryRow(t.Context(), "SHOW default_transaction_isolation").Scan(&got); err == nil && got == level {
						break
					}
					exec(t, setup, "SELECT 1")
				}
				const rows, claimers = 60, 4
				keys := sameBucket(3)
				var msgs []any
				for i := range rows {
					msgs = append(msgs, order{keys[i%3], i / 3})
				}
				put(t, db, outbox.Config{}, msgs...)
				var mu sync.Mutex
				var got []order
				var all sync.WaitGroup
				for range claimers {
					all.Go(func() {
						for range 1000 {
							c, err := db.Claim(context.Background(), "default", outbox.Keyed, outbox.ClaimLimit{Rows: 2, Bytes: 1 << 20})
							if err != nil {
								t.Error(err)
								return
							}
							mu.Lock()
							done := len(got) >= rows
							for _, row := range c.Rows() {
								got = append(got, bodyOf(row.Record))
							}
							mu.Unlock()
							if err := c.Settle(context.Background(), c.Rows(), nil); err != nil {
								t.Error(err)
							}
							if done {
								return
							}
						}
					})
				}
				all.Wait()
				if perKey(t, got); len(got) != rows {
					t.Errorf("%d rows were published, want each of %d once", len(got), rows)
				}
			})
		})
	}
}

// A row that a program without locks commits below a low-water mark is found
// within a round.
func TestRowBelowAMarkIsFoundWithinARound(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	out := newOutbox(t, db, outbox.Config{})
	key := ""
	for i := 0; key == "" || outbox.Bucket(key, 64) != 2; i++ { // the second that is looked at; on a slow machine a round of 64 s later
		key = fmt.Sprint("k", i)
	}
	late, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Rollback(context.Background())
	insert := "INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body) VALUES (1, 2, gen_random_uuid(), 'order.placed', $1, '{\"seq\":0}')"
	if _, err := late.Exec(t.Context(), insert, key); err != nil {
		t.Fatal(err)
	}
	sink := &recorder{}
	relaying(t, db, sink, outbox.RelayConfig{})
	if err := out.InTx(t.Context(), func(ctx context.Context, tx waypg.Tx) error {
		_, err := tx.Dispatch(ctx, order{key, 1})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	await(t, "the mark is above", 60*time.Second, func() bool { return len(sink.all()) == 1 })
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the late row comes", 90*time.Second, func() bool { return len(sink.all()) == 2 })
}

func TestFailedSettleMovesNoMark(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		dsn := at(t)
		db := openAt(t, dsn, waypg.Config{})
		put(t, db, outbox.Config{}, order{"k", 0}, order{"k", 1})
		c := claim(t, db, "default", manyRows)
		exec(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'")
		if err := c.Settle(t.Context(), c.Rows(), nil); !errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("Settle on a session that was ended = %v, want ErrUnavailable", err)
		}
		await(t, "the rows are free again", 60*time.Second, func() bool { return namesOf(claimAll(t, db, "default")) == "k0 k1" })
		// An end of the context is no answer either.
		c = claim(t, db, "default", manyRows)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Settle(ctx, c.Rows(), nil); err == nil {
			t.Error("Settle with a context that has ended = nil")
		}
		await(t, "the rows are free again", 60*time.Second, func() bool { return namesOf(claimAll(t, db, "default")) == "k0 k1" })
	})
}

// A claim that was under way when everything was forgotten, or when the ids
// began anew, must not bring its marks back.
func TestMarksOfAnEarlierTimeAreNotKept(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		out := newOutbox(t, db, outbox.Config{})
		send := func(o order) {
			t.Helper()
			if err := out.InTx(t.Context(), func(ctx context.Context, tx waypg.Tx) error {
				_, err := tx.Dispatch(ctx, o)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		sink := &recorder{}
		stop := relaying(t, db, sink, outbox.RelayConfig{})
		for i := range 20 {
			send(order{"k", i})
		}
		await(t, "warm marks", 60*time.Second, func() bool { return len(sink.all()) == 20 })
		exec(t, db, "TRUNCATE waybill_outbox RESTART IDENTITY")
		for i := 20; i < 25; i++ {
			send(order{"k", i})
		}
		await(t, "low ids come", 60*time.Second, func() bool { return len(sink.all()) == 25 })
		stop()
		perKey(t, sink.all())
	})
}

// Large rows of some buckets must not keep those of others back for ever.
func TestLargeRowsDoNotStarveOtherBuckets(t *testing.T) {
	everywhere(t, testLargeRowsDoNotStarveOtherBuckets)
}

func testLargeRowsDoNotStarveOtherBuckets(t *testing.T, at opener) {
	db := open(t, at, waypg.Config{})
	exec(t, db, "INSERT INTO waybill_transport (name) VALUES ('default')")
	if _, err := outbox.New(db, outbox.Config{To: "default2"}); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO waybill_outbox_bucket SELECT 1, b FROM generate_series(0, 63) AS b ON CONFLICT DO NOTHING;
		INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body)
		SELECT 1, n % 64, gen_random_uuid(), 'big', 'k' || n % 64, convert_to(repeat('x', 1000), 'UTF8') FROM generate_series(0, 64 * 20 - 1) AS n`)
	seen := map[string]bool{}
	for range 200 {
		c := claim(t, db, "default", outbox.ClaimLimit{Rows: 500, Bytes: 2000})
		for _, row := range c.Rows() {
			seen[row.Record.Key] = true
		}
		settle(t, c, nil) // as if each bucket had rows without end
	}
	if len(seen) != 64 {
		t.Errorf("%d of 64 buckets were served in 200 claims", len(seen))
	}
}

func TestUnreadableRowBlocksItsKeyOnly(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		put(t, db, outbox.Config{}, order{"bad", 0}, order{"bad", 1}, order{"good", 0})
		exec(t, db, `UPDATE waybill_outbox SET headers = '{"n": 1}' WHERE id = (SELECT min(id) FROM waybill_outbox)`)
		sink := &recorder{}
		drain(t, db, sink, outbox.RelayConfig{})
		if diff := cmp.Diff([]order{{"good", 0}}, sink.got); diff != "" {
			t.Errorf("published (-want +got):\n%s", diff)
		}
		if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left.Blocked != 2 {
			t.Errorf("Backlog = %+v, %v", left, err)
		}
	})
}

// Kills: version not bumped by Settle.
func TestSettleBumpsTheVersionOfTheBlockedKeys(t *testing.T) {
	everywhere(t, testSettleBumpsTheVersionOfTheBlockedKeys)
}

func testSettleBumpsTheVersionOfTheBlockedKeys(t *testing.T, at opener) {
	db := open(t, at, waypg.Config{})
	put(t, db, outbox.Config{}, order{"a", 1})
	version := func() int {
		return count(t, db, "SELECT coalesce(sum(version), 0) FROM waybill_outbox_version")
	}
	before := version()
	c := claim(t, db, "default", manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused})
	blocked := version()
	c = claimPart(t, db, outbox.Retries)
	settle(t, c, c.Rows())
	if released := version(); blocked == before || released == blocked {
		t.Errorf("blocked_version %d, after a block %d, after its release %d: want three values", before, blocked, released)
	}
}

// leastClaim is the time of the fastest of some claims that are let go again.
func leastClaim(t testing.TB, db *waypg.DB) time.Duration {
	t.Helper()
	least := time.Hour
	for range 21 {
		least = min(least, timedClaim(t, db))
	}
	return least
}

func timedClaim(t testing.TB, db *waypg.DB) time.Duration {
	t.Helper()
	start := time.Now()
	settle(t, claim(t, db, "default", outbox.ClaimLimit{Rows: 100, Bytes: 1 << 20}), nil)
	return time.Since(start)
}

// A key with many rows behind its blocked head, or a blocked route with many
// rows, must not make the others wait for a scan of them: claims begin behind
// them.
func TestManyRowsThatWaitCostOthersNothing(t *testing.T) {
	for what, refusal := range map[string]error{"key": errRefused, "route": &outbox.UnroutableError{Reason: "NO_ROUTE"}} {
		t.Run(what, func(t *testing.T) {
			db := open(t, testserver.Postgres, waypg.Config{})
			keys := sameBucket(4)
			put(t, db, outbox.Config{}, order{keys[3], 0})
			empty := leastClaim(t, db)
			drain(t, db, &recorder{}, outbox.RelayConfig{})
			msgs := make([]any, 20_000)
			for i := range msgs {
				n := 0 // all of one key, or of three
				if what == "route" {
					n = i % 3
				}
				msgs[i] = order{keys[n], i}
			}
			put(t, db, outbox.Config{}, msgs...)
			sink := &recorder{refuse: func(rec *waybill.Record) error {
				if rec.Name == "order.placed" { // and not y
					return refusal
				}
				return nil
			}}
			drain(t, db, sink, outbox.RelayConfig{Retry: noRetry})
			if blocked, err := db.Blocked(t.Context(), "", 0); err != nil || len(blocked) != 1 || blocked[0].Waiting != 20_000 || (blocked[0].Route != "") != (what == "route") {
				t.Fatalf("Blocked = %+v, %v", blocked, err)
			}
			put(t, db, raw(), named("y", order{keys[3], 1}))
			if got := claimAll(t, db, "default"); len(got) != 1 || got[0].Record.Key != keys[3] {
				t.Fatalf("claim behind the rows that wait = %d rows", len(got))
			}
			if warm := leastClaim(t, db); warm > 5*empty+5*time.Millisecond {
				t.Errorf("a claim takes %v, without rows that wait it was %v", warm, empty)
			}
		})
	}
}

// Once a claim has read past a blocked key, the number of rows that the database
// reads for other keys does not depend on the number of rows behind it.
func TestRowsBehindABlockedKeyAreReadOnce(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	const followers, rounds = 100_000, 20
	bad, good := keysOf63(2), otherBuckets(5)
	put(t, db, outbox.Config{}, order{bad[0], 0})
	c := claim(t, db, "default", manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, RetryIn: time.Hour})
	exec(t, db, fmt.Sprintf(`INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body)
		SELECT 1, 63, gen_random_uuid(), 'order.placed', '%s', '{}' FROM generate_series(1, %d)`, bad[0], followers))
	pass := func() {
		t.Helper()
		msgs := []any{order{bad[1], 0}} // of its bucket
		for _, key := range good {
			msgs = append(msgs, order{key, 0})
		}
		put(t, db, outbox.Config{}, msgs...)
		for n := 0; n < len(msgs); {
			c := claim(t, db, "default", manyRows)
			if n += len(c.Rows()); len(c.Rows()) == 0 {
				t.Fatalf("%d rows came beside the blocked key, want %d", n, len(msgs))
			}
			settle(t, c, c.Rows())
		}
	}
	cold := rowsRead(t, db, pass)
	warm := rowsRead(t, db, func() {
		for range rounds {
			pass()
		}
	})
	t.Logf("%d rows are read at first, then %d for each %d", cold, warm/rounds, 1+len(good))
	if cold < followers {
		t.Errorf("%d rows are read at first, want all %d: this proves nothing", cold, followers)
	}
	if warm/rounds > 200 {
		t.Errorf("%d rows are read for %d", warm/rounds, 1+len(good))
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

// An old snapshot keeps dead rows alive; marks step over them.
func TestClaimStaysFlatWhileAnOldSnapshotIsHeld(t *testing.T) {
	dsn := testserver.Postgres(t)
	db := openAt(t, dsn, waypg.Config{})
	put(t, db, outbox.Config{}, order{"k", 0})
	keys := sameBucket(5)
	old, err := db.Pool().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Rollback(context.Background())
	if _, err := old.Exec(t.Context(), "SELECT count(*) FROM waybill_outbox"); err != nil {
		t.Fatal(err)
	}
	sink := &recorder{}
	for range 10 {
		msgs := make([]any, 5000)
		for i := range msgs {
			msgs[i] = order{keys[i%5], i}
		}
		put(t, db, outbox.Config{}, msgs...)
		drain(t, db, sink, outbox.RelayConfig{})
	}
	if n := len(sink.got); n != 50_001 {
		t.Fatalf("%d came, want 50001", n)
	}
	put(t, db, outbox.Config{}, order{keys[0], 1})
	// A process that remembers nothing reads all the dead rows, on the same
	// machine in the same moments.
	var warm, cold []time.Duration
	for range 9 {
		stranger := connect(t, dsn, waypg.Config{})
		if _, err := stranger.Backlog(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		warm, cold = append(warm, leastClaim(t, db)), append(cold, timedClaim(t, stranger))
	}
	slices.Sort(warm)
	slices.Sort(cold)
	if warm, cold := warm[4], cold[4]; warm > cold/2 {
		t.Errorf("a claim takes %v with 50000 dead rows, %v without marks: want less than half", warm, cold)
	}
}

// The schedule of the stale snapshot, step by step: a relay's read of the buckets
// begins, another relay that holds a bucket settles, and then the first one gets
// the bucket. It must not get the rows that the other one has published.
func TestClaimThatBeginsBeforeASettleSeesItsRowsGone(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dsn := testserver.Postgres(t)
	first, second := openAt(t, dsn, waypg.Config{}), connect(t, dsn, waypg.Config{})
	// A statement that locks buckets reads this table first, and waits there: its
	// snapshot is taken, and its locks are not.
	exec(t, first, `CREATE FUNCTION gate() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
		IF current_query() LIKE '%waybill_outbox_bucket%' THEN
			PERFORM pg_advisory_lock_shared(1);
			PERFORM pg_advisory_unlock_shared(1);
		END IF;
		RETURN true; END $$`)
	exec(t, first, "ALTER TABLE waybill_meta RENAME TO meta_rows")
	exec(t, first, "CREATE VIEW waybill_meta AS SELECT * FROM meta_rows WHERE gate() OFFSET 0")
	put(t, first, outbox.Config{}, order{"k", 0}, order{"k", 1})
	held := claim(t, first, "default", manyRows)
	if n := len(claimAll(t, second, "default")); n != 0 {
		t.Fatalf("%d rows are in two hands", n)
	}
	gate, err := first.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Rollback(context.Background())
	if _, err := gate.Exec(ctx, "SELECT pg_advisory_xact_lock(1)"); err != nil {
		t.Fatal(err)
	}
	claimed := make(chan outbox.Claim)
	go func() {
		defer close(claimed)
		c, err := second.Claim(ctx, "default", outbox.Keyed, manyRows)
		if err != nil {
			t.Error(err)
			return
		}
		claimed <- c
	}()
	await(t, "the second claim waits", 60*time.Second, func() bool {
		return count(t, first, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'") == 1
	})
	settle(t, held, held.Rows())
	if err := gate.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	c := <-claimed
	if c == nil {
		return
	}
	if got := namesOf(c.Rows()); got != "" {
		t.Errorf("the claim has %q, which the other relay has published", got)
	}
	settle(t, c, nil)
	put(t, first, outbox.Config{}, order{"k", 2})
	if got := namesOf(claimAll(t, second, "default")); got != "k2" {
		t.Errorf("then it has %q, want k2", got)
	}
}

// A low-water mark moves after the commit: while a relay does not know yet that
// its session was ended, the next claim of its process finds all its claimed rows.
func TestMarkOfASettleThatCannotCommitIsNobodys(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	other := openAt(t, dsn, waypg.Config{})
	put(t, other, outbox.Config{}, order{"k", 0}, order{"k", 1})
	exec(t, other, "SELECT setval('waybill_outbox_id_seq', 10000)") // the mark is far above the first two
	put(t, other, outbox.Config{}, order{"k", 2})
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	network := faultproxy.HoldAt("DELETE FROM")
	cfg.ConnConfig.DialFunc = network.Dial
	db := over(t, cfg, waypg.Config{})
	c := claim(t, db, "default", manyRows)
	settled := make(chan error, 1)
	defer network.Release()
	go func() { settled <- c.Settle(context.Background(), c.Rows(), nil) }()
	select {
	case <-network.Reached:
	case err := <-settled:
		t.Fatalf("Settle = %v, and did not reach the deletion", err)
	}
	exec(t, other, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'")
	put(t, other, outbox.Config{}, order{"k", 3})
	var got string
	await(t, "the key is free", 60*time.Second, func() bool { got = namesOf(claimAll(t, db, "default")); return got != "" })
	if got != "k0 k1 k2 k3" {
		t.Errorf("another claim has %q, want k0 k1 k2 k3: nothing was published", got)
	}
	network.Release()
	if err := <-settled; !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Settle on a session that was ended = %v, want ErrUnavailable", err)
	}
}
