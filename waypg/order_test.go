package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
	"github.com/waybill-go/waybill/waytest"
)

// The suites do this with either library; here they meet.
func TestUnitsOfWorkOfBothLibrariesDoNotDeadlock(t *testing.T) {
	everywhere(t, testUnitsOfWorkOfBothLibrariesDoNotDeadlock)
}

func testUnitsOfWorkOfBothLibrariesDoNotDeadlock(t *testing.T, at opener) {
	db := open(t, at, waypg.Config{})
	both := sessions(t, db, outbox.Config{Routes: waybill.Routes{"*": {"q", "events"}}, Queues: map[string]string{"q": "q"}})
	keys := otherBuckets(5)
	want := 0
	var all sync.WaitGroup
	for i := range 8 {
		s, n := both[0], 60
		if i%2 == 0 {
			s, n = both[1], 15 // a round trip for each statement
		}
		want += n * len(keys)
		all.Go(func() {
			for n := range n {
				err := s.inTx(context.Background(), func(ctx context.Context, tx unit) error {
					for _, k := range rand.Perm(len(keys)) {
						if _, err := tx.dispatch(ctx, order{keys[k], n}); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	for _, table := range []string{"outbox", "queue"} {
		if n := count(t, db, "SELECT count(*) FROM waybill_"+table); n != want {
			t.Errorf("%d messages in %s, want %d", n, table, want)
		}
	}
}

// A line is a broker that takes its time, and remembers the order of first
// deliveries.
type line struct {
	waytest.NoTraits
	mu    sync.Mutex
	first []waybill.MessageID
	seen  map[waybill.MessageID]int
}

func (l *line) Publish(ctx context.Context, items []outbox.Item, results chan<- outbox.Result) {
	for _, item := range items {
		go func() {
			var err error
			select {
			case <-time.After(time.Duration(rand.IntN(1500)) * time.Microsecond):
			case <-ctx.Done():
				err = waybill.ErrUnavailable
			}
			if err == nil {
				switch rand.IntN(100) {
				case 0:
					err = fmt.Errorf("%w: cut", waybill.ErrUnavailable)
				case 1:
					err = errRefused
				}
			}
			if err == nil {
				l.mu.Lock()
				if l.seen[item.Record.ID]++; l.seen[item.Record.ID] == 1 {
					l.first = append(l.first, item.Record.ID)
				}
				l.mu.Unlock()
			}
			results <- outbox.Result{Seq: item.Seq, Err: err}
		}()
	}
}

// The promise of order, with everything that goes wrong: dispatchers that hold
// and roll back, relays that lose their sessions in the middle of a publish, a
// broker that refuses and cuts. The order of commits is the server's own word.
func TestFirstDeliveriesAreInCommitOrder(t *testing.T) {
	t.Parallel()
	server := testserver.StartPostgres(t, map[string]string{"track_commit_timestamp": "on", "max_connections": "200"})
	dsn := server.URL()
	db := openAt(t, dsn, waypg.Config{})
	exec(t, db, "CREATE TABLE sent (id uuid PRIMARY KEY, k text, n int)")
	both := sessions(t, db, outbox.Config{})
	out := newOutbox(t, db, outbox.Config{})
	keys := append(append(sameBucket(3), otherBuckets(4)...), "")
	broker := &line{seen: map[waybill.MessageID]int{}}

	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	var relays sync.WaitGroup
	var kills atomic.Int64
	for range 3 {
		relays.Go(func() {
			other := connect(t, dsn, waypg.Config{}) // with its own low-water marks, which stay warm
			for ctx.Err() == nil {
				life, end := context.WithTimeout(ctx, time.Duration(200+rand.IntN(500))*time.Millisecond)
				relay, err := outbox.NewRelay(other, broker, outbox.RelayConfig{Batch: 40, Retry: waybill.Backoff{Delay: 20 * time.Millisecond, MaxDelay: 50 * time.Millisecond}})
				if err != nil {
					t.Error(err)
				} else if err := relay.Run(life); err != nil {
					t.Error(err)
				}
				end()
			}
		})
	}
	relays.Go(func() { // the killer of sessions
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(50+rand.IntN(150)) * time.Millisecond):
			}
			tag, err := db.Pool().Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN (
				SELECT pid FROM pg_locks WHERE relation = 'waybill_outbox_bucket'::regclass) ORDER BY random() LIMIT 1`)
			if err == nil {
				kills.Add(tag.RowsAffected())
			}
		}
	})

	var dispatchers sync.WaitGroup
	var committed, rolledBack atomic.Int64
	for i := range 8 {
		dispatchers.Go(func() {
			for range 60 {
				var rows [][]any
				note := func(id waybill.MessageID, key string) { rows = append(rows, []any{id.String(), key, len(rows)}) }
				batch := make([]string, 1+rand.IntN(3))
				for j := range batch {
					batch[j] = keys[rand.IntN(len(keys))]
				}
				fail := rand.IntN(10) == 0
				hold := func() { time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond) }
				var err error
				if i%2 == 0 { // a unit of work
					err = both[i/2%2].inTx(context.Background(), func(ctx context.Context, tx unit) error {
						hold()
						for j, key := range batch {
							id, err := tx.dispatch(ctx, order{key, 0})
							if err != nil {
								return err
							}
							if err := tx.exec(ctx, fmt.Sprintf("INSERT INTO sent VALUES ('%s', '%s', %d)", id, key, j)); err != nil {
								return err
							}
						}
						if fail {
							return errChangedMind
						}
						return nil
					})
				} else { // the caller's own, which holds the lock for a while
					err = pgx.BeginFunc(context.Background(), db.Pool(), func(tx pgx.Tx) error {
						msgs := make([]any, len(batch))
						for j, key := range batch {
							msgs[j] = order{key, 0}
						}
						ids, err := out.DispatchAll(context.Background(), tx, msgs...)
						if err != nil {
							return err
						}
						hold()
						for j, id := range ids {
							note(id, batch[j])
						}
						if _, err := tx.CopyFrom(context.Background(), pgx.Identifier{"sent"}, []string{"id", "k", "n"}, pgx.CopyFromRows(uuids(rows, ids))); err != nil {
							return err
						}
						if fail {
							return errChangedMind
						}
						return nil
					})
				}
				switch {
				case err == nil:
					committed.Add(1)
				case errors.Is(err, errChangedMind):
					rolledBack.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	dispatchers.Wait()
	for ctx.Err() == nil && count(t, db, "SELECT count(*) FROM waybill_outbox") > 0 {
		time.Sleep(20 * time.Millisecond)
	}
	if n := count(t, db, "SELECT count(*) FROM waybill_outbox"); n > 0 {
		t.Errorf("%d messages were not published in time", n)
	}
	stop()
	relays.Wait()

	rows, err := db.Pool().Query(t.Context(), "SELECT id, k FROM sent ORDER BY pg_xact_commit_timestamp(xmin), n")
	if err != nil {
		t.Fatal(err)
	}
	type sent struct {
		ID [16]byte
		K  string
	}
	want, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sent])
	if err != nil {
		t.Fatal(err)
	}
	keyOf := map[waybill.MessageID]string{}
	next := map[string][]waybill.MessageID{}
	for _, s := range want {
		keyOf[s.ID] = s.K
		next[s.K] = append(next[s.K], s.ID)
	}
	violations := 0
	for _, id := range broker.first {
		key, ok := keyOf[id]
		if !ok {
			t.Errorf("message %s of a rolled-back transaction was published", id)
			continue
		}
		if key != "" {
			if next[key][0] != id {
				violations++
			}
			next[key] = next[key][1:]
		}
		delete(keyOf, id)
	}
	duplicates := 0
	for _, n := range broker.seen {
		duplicates += n - 1
	}
	t.Logf("%d transactions committed, %d rolled back, %d messages, %d duplicates, %d sessions killed", committed.Load(), rolledBack.Load(), len(want), duplicates, kills.Load())
	if violations > 0 || len(keyOf) > 0 {
		t.Errorf("%d messages out of order, %d lost", violations, len(keyOf))
	}
	if kills.Load() == 0 || rolledBack.Load() == 0 {
		t.Error("too few faults to prove anything")
	}
}

// uuids gives rows their ids as COPY takes them.
func uuids(rows [][]any, ids []waybill.MessageID) [][]any {
	for i := range rows {
		rows[i][0] = [16]byte(ids[i])
	}
	return rows
}

// Rows are deleted by ctid. A row that an UPDATE has moved meanwhile must not be
// taken for deleted, nor another row for it.
func TestRowUpdatedByHandWhileItIsPublishedComesAgain(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	put(t, db, outbox.Config{}, order{"a", 0}, order{"a", 1}, order{"b", 0})
	c := claim(t, db, "default", manyRows)
	if _, err := db.Pool().Exec(t.Context(), "UPDATE waybill_outbox SET headers = '{\"mended\": \"yes\"}' WHERE partition_key = 'a' AND id = (SELECT min(id) FROM waybill_outbox WHERE partition_key = 'a')"); err != nil {
		t.Fatal(err)
	}
	put(t, db, outbox.Config{}, order{"a", 2})
	settle(t, c, c.Rows())
	await(t, "the updated row is claimed again", 60*time.Second, func() bool {
		again := claim(t, db, "default", manyRows)
		defer settle(t, again, nil)
		return namesOf(again.Rows()) == "a0 a2"
	})
}
