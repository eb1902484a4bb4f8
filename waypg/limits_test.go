package waypg_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

func TestPromotionIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	newOutbox(t, db, outbox.Config{})
	exec(t, db, `INSERT INTO waybill_delayed (due_at, transport, message_id, message_name, partition_key, body)
		SELECT now(), 1, gen_random_uuid(), 'big', 'k' || n, convert_to(repeat('x', 1000000), 'UTF8') FROM generate_series(1, 40) AS n`)
	before := 0
	for before < 40 {
		c := claim(t, db, "default", outbox.ClaimLimit{Rows: 1, Bytes: 1})
		settle(t, c, nil)
		now := count(t, db, "SELECT count(*) FROM waybill_outbox")
		if now == before || now > before+10 { // two batches of five, at most
			t.Fatalf("a claim promoted %d messages of 1 MB", now-before)
		}
		before = now
	}
}

func TestWaitingUnkeyedMessagesAreNotRead(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	put(t, db, outbox.Config{}, order{"k", 0})
	exec(t, db, `INSERT INTO waybill_outbox_unkeyed (transport, message_id, message_name, body) SELECT 1, gen_random_uuid(), 'x', '' FROM generate_series(1, 20000);
		INSERT INTO waybill_outbox_blocked (transport, route, row_id, bucket, message_id, message_name, failures, next_attempt_at, last_error)
		VALUES (1, 'x', 0, -1, gen_random_uuid(), 'x', 1, now() + interval '30 minutes', '')`)
	if n := len(claimPart(t, db, outbox.Unkeyed).Rows()); n != 0 {
		t.Fatalf("%d rows of a waiting route were claimed", n)
	}
	exec(t, db, "VACUUM waybill_outbox_unkeyed")
	claimPart(t, db, outbox.Unkeyed)
	if n := entriesRead(t, db, "waybill_outbox_unkeyed", func() {
		settle(t, claim(t, db, "default", manyRows), nil)
	}); n > 20 { // for upkeep
		t.Errorf("a claim of keyed rows reads %d of the messages that wait", n)
	}
	if n := entriesRead(t, db, "waybill_outbox_unkeyed", func() { claimPart(t, db, outbox.Unkeyed) }); n > 20 {
		t.Errorf("an idle look reads %d of the messages that wait", n)
	}
	exec(t, db, "DELETE FROM waybill_outbox_blocked")
	await(t, "the messages come when the route waits no more", 60*time.Second, func() bool {
		settle(t, claim(t, db, "default", manyRows), nil)
		return count(t, db, "SELECT count(*) FROM waybill_outbox_unkeyed WHERE held = 0") == 20_000
	})
}

// A read of messages without a key begins behind those of earlier reads, or it would pass
// their dead index entries until the next vacuum.
func TestDeadUnkeyedMessagesAreNotRead(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	put(t, db, outbox.Config{}, order{"k", 0})
	exec(t, db, "ALTER TABLE waybill_outbox_unkeyed SET (autovacuum_enabled = false)")
	exec(t, db, `INSERT INTO waybill_outbox_unkeyed (transport, message_id, message_name, body) SELECT 1, gen_random_uuid(), 'x', '' FROM generate_series(1, 50000)`)
	pages := func() int {
		return readDuring(t, db, "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_tables WHERE relid = 'waybill_outbox_unkeyed'::regclass",
			func() { settle(t, claimPart(t, db, outbox.Unkeyed), nil) })
	}
	for {
		c := claimPart(t, db, outbox.Unkeyed)
		settle(t, c, c.Rows())
		if len(c.Rows()) == 0 {
			break
		}
	}
	least := pages()
	for range 9 { // one of them may be from the start
		least = min(least, pages())
	}
	if least > 20 {
		t.Errorf("a look reads %d pages of the index of rows that are gone", least)
	}
}

// slowFromTheStart makes reads of messages without a key slow if they begin at the start of the
// table, as beside many dead rows, and counts them.
type slowFromTheStart struct {
	reads atomic.Int64
	takes time.Duration
}

func (s *slowFromTheStart) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	if strings.Contains(q.SQL, "waybill_outbox_unkeyed") && len(q.Args) == 4 && q.Args[3] == int64(0) {
		s.reads.Add(1)
		time.Sleep(s.takes)
	}
}

func (*slowFromTheStart) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (*slowFromTheStart) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
func (*slowFromTheStart) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (*slowFromTheStart) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Reads of messages without a key that begin at the start of the table take at most a twentieth
// of the time, also while each claim finds a message.
func TestSlowReadsFromTheStartAreRare(t *testing.T) {
	t.Parallel()
	direct := open(t, testserver.Postgres, waypg.Config{})
	exec(t, direct, "ALTER SEQUENCE waybill_outbox_unkeyed_id_seq RESTART 5000") // above the margin of a position
	cfg := direct.Pool().Config()
	slow := &slowFromTheStart{takes: 200 * time.Millisecond}
	cfg.ConnConfig.Tracer = slow
	db := over(t, cfg, waypg.Config{})
	begun := time.Now()
	for time.Since(begun) < 5*time.Second {
		put(t, direct, outbox.Config{}, order{"", 0})
		c := claimPart(t, db, outbox.Unkeyed)
		if len(c.Rows()) != 1 {
			t.Fatalf("%d rows, want 1", len(c.Rows()))
		}
		settle(t, c, c.Rows())
	}
	took := time.Since(begun)
	if got, most := slow.reads.Load(), 1+int64(took/(20*slow.takes)); got < 1 || got > most {
		t.Errorf("%d reads of %v from the start in %v, want 1 to %d", got, slow.takes, took, most)
	}
}

func TestClaimOfUnkeyedMessagesReadsItsBatchAlone(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	put(t, db, outbox.Config{}, order{"k", 0})
	exec(t, db, `INSERT INTO waybill_outbox_unkeyed (transport, message_id, message_name, body) SELECT 1, gen_random_uuid(), 'x', '' FROM generate_series(1, 20000)`)
	if n := entriesRead(t, db, "waybill_outbox_unkeyed", func() {
		c, err := db.Claim(t.Context(), "default", outbox.Unkeyed, outbox.ClaimLimit{Rows: 500, Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		settle(t, c, c.Rows())
	}); n > 3*500 {
		t.Errorf("a claim of 500 of 20,000 messages reads %d index entries", n)
	}
}

// A claim that ends at its limit of bytes leaves rows that it has locked, and the next one
// begins with them.
func TestClaimsOfLargeUnkeyedMessagesPassNothingOver(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	put(t, db, outbox.Config{}, order{"k", 0})
	const n = 4000
	exec(t, db, fmt.Sprintf(`INSERT INTO waybill_outbox_unkeyed (transport, message_id, message_name, body) SELECT 1, gen_random_uuid(), 'x', repeat('x', 1000)::bytea FROM generate_series(1, %d)`, n))
	for got := 0; got < n; {
		c, err := db.Claim(t.Context(), "default", outbox.Unkeyed, outbox.ClaimLimit{Rows: n, Bytes: 500_000})
		if err != nil {
			t.Fatal(err)
		}
		settle(t, c, c.Rows())
		if got += len(c.Rows()); len(c.Rows()) == 0 {
			t.Fatalf("a claim finds nothing after %d of %d messages", got, n)
		}
	}
}

func TestUnkeyedMessageThatCommitsLateIsNotOverlooked(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	out := newOutbox(t, db, outbox.Config{})
	sink := &recorder{}
	relaying(t, db, sink, outbox.RelayConfig{})
	late, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Rollback(context.Background())
	if _, err := out.Dispatch(t.Context(), late, order{"", 0}); err != nil {
		t.Fatal(err)
	}
	put(t, db, outbox.Config{}, orders("", 1, 3000)...)
	await(t, "the others come", 60*time.Second, func() bool { return len(sink.all()) == 2999 })
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the late one comes", 60*time.Second, func() bool { return len(sink.all()) == 3000 })
}

func TestBlockedKeysOfOtherBucketsAreNotRead(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	keys := sameBucket(1)
	put(t, db, outbox.Config{}, order{keys[0], 0})
	exec(t, db, `INSERT INTO waybill_outbox_blocked (transport, partition_key, row_id, bucket, message_id, message_name, failures, next_attempt_at, last_error, state)
		SELECT 1, 'p' || n, n, n % 64, gen_random_uuid(), 'x', 1, now() + interval '30 minutes', '', CASE n % 2 WHEN 0 THEN 'parked' ELSE 'retrying' END FROM generate_series(1, 100000) AS n;
		ANALYZE waybill_outbox_blocked`)
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed, outbox.Retries} {
		settle(t, claimPart(t, db, part), nil)
		time.Sleep(1100 * time.Millisecond) // until the next upkeep
		if n := entriesRead(t, db, "waybill_outbox_blocked", func() { settle(t, claimPart(t, db, part), nil) }); n > 100 {
			t.Errorf("a claim of %v reads %d of 100000 entries", part, n)
		}
	}
}

func TestTransportOfAnotherNumberIsRefused(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	out := newOutbox(t, db, outbox.Config{})
	exec(t, db, "UPDATE waybill_transport SET name = 'audit'")
	for _, key := range []string{"k", ""} {
		for range 2 {
			if err := out.InTx(t.Context(), func(ctx context.Context, tx waypg.Tx) error {
				_, err := tx.Dispatch(ctx, order{key, 0})
				return err
			}); err == nil {
				t.Error("a message was dispatched to another transport than its own")
			}
		}
	}
	if n := count(t, db, "SELECT (SELECT count(*) FROM waybill_outbox) + (SELECT count(*) FROM waybill_outbox_unkeyed)"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

func TestDelayedMessageThatTheOutboxRefusesStopsNothing(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	newOutbox(t, db, outbox.Config{})
	exec(t, db, `ALTER TABLE waybill_outbox ADD CHECK (message_name <> 'bad');
		INSERT INTO waybill_delayed (due_at, transport, message_id, message_name, partition_key, body)
		SELECT now(), 1, gen_random_uuid(), CASE n % 10 WHEN 0 THEN 'bad' ELSE 'order.placed' END, 'k', convert_to('{"key":"k","seq":' || n || '}', 'UTF8') FROM generate_series(0, 29) AS n`)
	var all sync.WaitGroup
	for range 2 {
		other := openAtSame(t, db)
		all.Go(func() {
			for range 20 {
				settle(t, claim(t, other, "default", manyRows), nil)
			}
		})
	}
	all.Wait()
	if n := count(t, db, "SELECT count(*) FROM waybill_outbox"); n != 27 {
		t.Errorf("%d messages were promoted, want 27", n)
	}
	if n := count(t, db, "SELECT count(*) FROM waybill_delayed WHERE message_name = 'bad' AND due_at > '9999-01-01'"); n != 3 {
		t.Errorf("%d messages were put aside, want 3", n)
	}
	if left, err := db.Backlog(t.Context(), "default"); err != nil || left != (outbox.Backlog{Pending: 30, Blocked: 3}) {
		t.Errorf("Backlog = %+v, %v, want those that were put aside among the blocked ones", left, err)
	}
	seqs := []int{}
	for _, o := range pending(t, db, "default") {
		seqs = append(seqs, o.Seq)
	}
	if !slices.IsSorted(seqs) {
		t.Errorf("promoted in the order %v", seqs)
	}
}

func TestIDsThatBeginAnewAreNoticed(t *testing.T) {
	for name, back := range map[string]string{"restart": "ALTER TABLE waybill_outbox ALTER COLUMN id RESTART WITH 1", "setval": "SELECT setval('waybill_outbox_id_seq', 10, false)"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, testserver.Postgres, waypg.Config{})
			sink := &recorder{}
			relaying(t, db, sink, outbox.RelayConfig{})
			put(t, db, outbox.Config{}, orders("k", 0, 100)...)
			await(t, "the first come", 60*time.Second, func() bool { return len(sink.all()) == 100 })
			await(t, "their rows are gone", 60*time.Second, func() bool { return len(pending(t, db, "default")) == 0 })
			exec(t, db, back)
			settle(t, claim(t, db, "default", manyRows), nil) // a look, before ids catch up with the marks
			put(t, db, outbox.Config{}, orders("k", 100, 250)...)
			await(t, "the others come", 60*time.Second, func() bool { return len(sink.all()) == 250 })
			perKey(t, sink.all())
		})
	}
}

func orders(key string, from, to int) (all []any) {
	for i := from; i < to; i++ {
		all = append(all, order{key, i})
	}
	return all
}

func TestHotKeyDoesNotHoldUpItsBucket(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	keys := sameBucket(2)
	put(t, db, outbox.Config{}, orders(keys[0], 0, 5000)...)
	put(t, db, outbox.Config{}, order{keys[1], 0})
	for n := 1; ; n++ {
		c := claim(t, db, "default", outbox.ClaimLimit{Rows: 100, Bytes: 1 << 20})
		cold := slices.ContainsFunc(c.Rows(), func(row outbox.ClaimedRow) bool { return row.Record.Key == keys[1] })
		settle(t, c, c.Rows())
		if cold {
			break
		}
		if n == 5 {
			t.Fatal("five claims have only rows of the hot key")
		}
	}
}

func TestEntryOfAClockThatWentBackIsRetried(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	put(t, db, outbox.Config{}, order{"k", 0})
	c := claim(t, db, "default", manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, RetryIn: time.Second})
	exec(t, db, "UPDATE waybill_outbox_blocked SET next_attempt_at = next_attempt_at + interval '2 hours'")
	await(t, "the key is retried", 60*time.Second, func() bool {
		claim(t, db, "default", manyRows)
		retries := claimPart(t, db, outbox.Retries)
		defer settle(t, retries, nil)
		return len(retries.Rows()) == 1
	})
}

func TestRowInAWrongBucketIsBlocked(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	newOutbox(t, db, outbox.Config{})
	wrong := (outbox.Bucket("k", 64) + 1) % 64
	exec(t, db, fmt.Sprintf(`INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body)
		SELECT 1, b, gen_random_uuid(), 'order.placed', 'k', '{}' FROM unnest(ARRAY[%d, 70, -5]) AS b`, wrong))
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{Retry: noRetry})
	left, err := db.Backlog(t.Context(), "default")
	if err != nil || len(sink.got) != 0 || left.Pending != 3 || left.Blocked != 3 {
		t.Errorf("Backlog = %+v, %v with %v published, want three blocked rows", left, err, sink.got)
	}
}

// Thousands of parked keys come back in order, beside live messages and two relays.
func TestManyParkedKeysComeBackInOrder(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	const keys = 3000
	var msgs []any
	for seq := range 2 {
		for k := range keys {
			msgs = append(msgs, order{fmt.Sprint("p", k), seq})
		}
	}
	put(t, db, outbox.Config{}, msgs...)
	park := func(string) outbox.Policy { return outbox.Park }
	ill := &recorder{refuse: func(*waybill.Record) error { return errRefused }}
	drain(t, db, ill, outbox.RelayConfig{OnExhausted: park, MaxAttempts: 1})
	if n := count(t, db, "SELECT count(*) FROM waybill_outbox WHERE bucket >= 1024"); n != 2*keys {
		t.Fatalf("%d rows are set aside, want %d", n, 2*keys)
	}
	var later []any
	for k := range keys {
		later = append(later, order{fmt.Sprint("p", k), 2})
	}
	put(t, db, outbox.Config{}, later...)
	sink := &recorder{}
	relaying(t, db, sink, outbox.RelayConfig{})
	relaying(t, openAtSame(t, db), sink, outbox.RelayConfig{})
	var live sync.WaitGroup
	live.Go(func() {
		for i := range 50 {
			start := time.Now()
			put(t, db, outbox.Config{}, order{"live", i})
			if d := time.Since(start); d > 15*time.Second {
				t.Errorf("a dispatch took %v", d)
			}
		}
	})
	if n, err := db.Release(t.Context(), admin.BlockedQuery{}); err != nil || n != keys {
		t.Errorf("Release = %d, %v, want %d", n, err, keys)
	}
	live.Wait()
	await(t, "all come", 60*time.Second, func() bool { return len(sink.all()) == 3*keys+50 })
	perKey(t, sink.all())
}

// A release that was interrupted has brought the head back, whose key is still parked.
func TestSkipHeadAfterAnInterruptedRelease(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	put(t, db, outbox.Config{}, orders("k", 0, 4)...)
	c := claim(t, db, "default", manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused, Policy: outbox.Park, Exhausted: true})
	exec(t, db, "UPDATE waybill_outbox SET bucket = bucket - 1024 WHERE id IN (SELECT id FROM waybill_outbox ORDER BY id LIMIT 2)")
	if n, err := db.Release(t.Context(), admin.BlockedQuery{Key: "k", SkipHead: true}); err != nil || n != 1 {
		t.Fatalf("Release = %d, %v", n, err)
	}
	letters, err := db.Failed(t.Context(), admin.FailedQuery{})
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{})
	if got := sink.all(); err != nil || len(letters) != 1 || letters[0].ID != c.Rows()[0].Record.ID || !slices.Equal(got, []order{{"k", 1}, {"k", 2}, {"k", 3}}) {
		t.Errorf("dead letters %+v, %v, and %v is published: want k0, and the rest", letters, err, got)
	}
}

// A head that a relay is just publishing is published or skipped, and not both or neither.
func TestSkipHeadWaitsForARelayThatTriesIt(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	put(t, db, outbox.Config{}, orders("k", 0, 2)...)
	c := claim(t, db, "default", manyRows)
	settle(t, c, nil, outbox.Failure{Row: c.Rows()[0], Err: errRefused})
	retries := claimPart(t, db, outbox.Retries)
	if len(retries.Rows()) != 1 {
		t.Fatalf("%d rows are retried, want 1", len(retries.Rows()))
	}
	done := make(chan error, 1)
	go func() {
		_, err := db.Release(context.Background(), admin.BlockedQuery{Key: "k", SkipHead: true})
		done <- err
	}()
	await(t, "the release waits", 60*time.Second, func() bool {
		return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	})
	settle(t, retries, retries.Rows())
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	letters, err := db.Failed(t.Context(), admin.FailedQuery{})
	if got := pending(t, db, "default"); err != nil || len(letters) != 0 || !slices.Equal(got, []order{{"k", 1}}) {
		t.Errorf("dead letters %+v, %v, and %v waits: want none, and the rest", letters, err, got)
	}
}
