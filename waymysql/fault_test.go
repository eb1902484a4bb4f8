package waymysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// The server ends the session of a relay that is silent, and its locks with it.
func TestClaimOfAFrozenRelayGoesToAnother(t *testing.T) {
	t.Parallel()
	frozen, dsn := newDB(t, waymysql.Config{IdleTimeout: 2 * time.Second})
	other := open(t, dsn, waymysql.Config{})
	put(t, frozen, order{"k", 0}, order{"l", 0})
	start := time.Now()
	c := claim(t, frozen, manyRows)
	if n := len(c.Rows()); n != 2 {
		t.Fatalf("%d rows, want 2", n)
	}
	if got := look(t, other); got != "" {
		t.Errorf("%q is in two hands", got)
	}
	var taken outbox.Claim
	await(t, "the other has the rows", 60*time.Second, func() bool {
		if taken = claim(t, other, manyRows); len(taken.Rows()) == 1 {
			settle(t, taken, nil) // it came between bucket and row
		}
		return len(taken.Rows()) == 2
	})
	if took := time.Since(start); took < 1500*time.Millisecond || took > 15*time.Second {
		t.Errorf("the successor had the rows after %v, want 2 to 3 s", took)
	} else {
		t.Logf("the successor had the rows after %v", took)
	}
	if err := c.Settle(t.Context(), c.Rows(), []outbox.Failure{}); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Settle of the frozen one = %v, want ErrUnavailable", err)
	}
	settle(t, taken, nil)
	if got := look(t, frozen); got != "k0 l0" {
		t.Errorf("the frozen one sees %q now, want all: its marks are worth nothing", got)
	}
}

// A server that is blocked in sending rows to a client that does not read is not
// idle: net_write_timeout ends the session.
func TestRelayThatStopsReadingLosesItsRows(t *testing.T) {
	t.Parallel()
	other, dsn := newDB(t, waymysql.Config{})
	var msgs []any
	for range 24 {
		msgs = append(msgs, waybill.RawMessage{Name: "big", Key: "k", ContentType: "x/y", Body: slices.Repeat([]byte("0123456789abcdef"), 1<<16)}) // 1 MiB
	}
	put(t, other, msgs...)
	frozen, network := stalled(t, dsn)
	done := make(chan error, 1)
	go func() {
		_, err := frozen.Claim(context.Background(), outbox.DefaultTransport, outbox.Keyed, outbox.ClaimLimit{Rows: 100, Bytes: 128 << 20})
		done <- err
	}()
	<-network.stuck
	start := time.Now()
	await(t, "the successor has the rows", 60*time.Second, func() bool {
		c := claim(t, other, outbox.ClaimLimit{Rows: 100, Bytes: 4 << 20})
		settle(t, c, nil)
		return len(c.Rows()) > 0
	})
	t.Logf("the successor had the rows after %v", time.Since(start))
	close(network.goOn)
	if err := <-done; err == nil { // of the server's end
		t.Error("the frozen claim = nil, want an error")
	}
}

func TestFailedSettleMovesNoMark(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0}, order{"k", 1})
	c := claim(t, db, manyRows)
	endOthers(t, db)
	if err := c.Settle(t.Context(), c.Rows(), nil); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Settle on a session that was ended = %v, want ErrUnavailable", err)
	}
	await(t, "the rows are free again", 60*time.Second, func() bool { return look(t, db) == "k0 k1" })
}

// endOthers ends all sessions of the database that have a transaction open.
func endOthers(t testing.TB, db *waymysql.DB) {
	t.Helper()
	await(t, "a session has a transaction open", 60*time.Second, func() bool { return endSome(t, db) > 0 })
}

// endSome ends the sessions whose transactions the server tells of, and returns how many.
func endSome(t testing.TB, db *waymysql.DB) (n int) {
	t.Helper()
	asking.Lock() // see waiting
	defer asking.Unlock()
	time.Sleep(120 * time.Millisecond)
	rows, err := db.Pool().QueryContext(context.Background(), "SELECT p.id FROM information_schema.innodb_trx t JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID()")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		exec(t, db, fmt.Sprint("KILL ", id))
		n++
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// A connection that was lost before COMMIT was to be sent says nothing unknown.
func TestConnectionLostInsideTheUnitIsAKnownFailure(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	for _, n := range []int{0, 1} {
		err := out.InTx(t.Context(), func(ctx context.Context, tx waymysql.Tx) error {
			for range n {
				if _, err := tx.Dispatch(ctx, order{"k", 1}); err != nil {
					return err
				}
			}
			_, _ = tx.SQL().ExecContext(ctx, "KILL CONNECTION_ID()")
			time.Sleep(50 * time.Millisecond) // the server answers before it closes
			return nil
		})
		if !errors.Is(err, waybill.ErrUnavailable) || errors.Is(err, waybill.ErrCommitUnknown) {
			t.Errorf("%d messages: InTx = %v, want ErrUnavailable", n, err)
		}
	}
	if got := look(t, db); got != "" {
		t.Errorf("%q was dispatched", got)
	}
}

// A pool without a free connection must not keep a caller whose context ends.
func TestWaitForAConnectionEndsWithTheContext(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{MaxConns: 1})
	newOutbox(t, db, outbox.Config{})
	err := db.InTx(t.Context(), func(context.Context, *sql.Tx) error {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		return db.InTx(ctx, func(context.Context, *sql.Tx) error { return nil })
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("InTx = %v, want DeadlineExceeded", err)
	}
}

func TestGoroutinesMayDispatchInOneUnit(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx waymysql.Tx) error {
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				if _, err := tx.Dispatch(ctx, order{"k", i}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		return nil
	})
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0"); err != nil || n != 50 {
		t.Errorf("%d of 50 messages, %v", n, err)
	}
}

// A row that was edited by hand and cannot be decoded blocks its key.
func TestUnreadableRowsBlockTheirKeysOnly(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"good", 0}, order{"", 0}, order{"numbers", 0}, order{"numbers", 1}, order{"short", 0}, order{"short", 1}, order{"empty", 0})
	exec(t, db, `UPDATE waybill_outbox SET headers = '{"n": 1}' WHERE partition_key = 'numbers' ORDER BY id LIMIT 1`)
	exec(t, db, `UPDATE waybill_outbox SET headers = '{"a": {"b": ["c"]}}' WHERE partition_key = 'empty'`)
	exec(t, db, "UPDATE waybill_outbox SET message_id = 'x' WHERE partition_key = 'short' ORDER BY id LIMIT 1") // padded with zeros
	insert := "INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, headers, body) SELECT id, ?, ?, ?, ?, ?, '' FROM waybill_transport WHERE name = 'default'"
	for what, args := range map[string][]any{
		"no JSON": {-1, make([]byte, 16), []byte("x"), []byte(""), "{"}, "no name": {-1, make([]byte, 16), []byte(""), []byte(""), "{}"},
		"long id": {-1, make([]byte, 17), []byte("x"), []byte(""), "{}"}, "no id": {-1, nil, []byte("x"), []byte(""), "{}"}, "long key": {3, make([]byte, 16), []byte("x"), make([]byte, 256), "{}"},
	} {
		if _, err := db.Pool().ExecContext(t.Context(), insert, args...); err == nil {
			t.Errorf("%s: the row was taken", what)
		}
	}
	// Rows that the table accepts and a broker would not.
	exec(t, db, "INSERT INTO waybill_outbox_unkeyed (transport, message_id, message_name, body) SELECT id, ?, ?, '' FROM waybill_transport", make([]byte, 16), []byte("a name\x00\xff"))
	exec(t, db, insert, outbox.Bucket("list", 64), make([]byte, 16), []byte("x"), []byte("list"), "[]")
	exec(t, db, insert, outbox.Bucket("z\xff", 64), make([]byte, 16), []byte("x"), []byte("z\xff"), "{}")
	sink := &recorder{}
	drain(t, db, sink, outbox.RelayConfig{Retry: noRetry})
	got := perKey(t, sink.got)
	if got["good"] != 1 || got["numbers"] != 0 || got["empty"] != 0 {
		t.Errorf("published %v", got)
	}
	blocked, err := db.Blocked(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocked {
		t.Logf("blocked: %q %q %s", b.Key, b.HeadName, b.LastError)
	}
	if left, err := db.Backlog(t.Context(), outbox.DefaultTransport); err != nil || left.Pending != left.Blocked || left.Blocked < 3 {
		t.Errorf("Backlog = %+v, %v", left, err)
	}
	put(t, db, order{"good", 1}, order{"other", 0})
	drain(t, db, sink, outbox.RelayConfig{Retry: noRetry})
	if got := perKey(t, sink.got); got["good"] != 2 || got["other"] != 1 {
		t.Errorf("published %v, want that others go on", got)
	}
}

// A row that a program without locks commits below a low-water mark is found
// within a round.
func TestRowBelowAMarkIsFoundWithinARound(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	out := newOutbox(t, db, outbox.Config{})
	key := ""
	for i := 0; key == "" || outbox.Bucket(key, 64) != 2; i++ { // the second that is looked at; on a slow machine a round of 64 s later
		key = fmt.Sprint("k", i)
	}
	late := begin(t, pool(t, dsn))
	insert := "INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, body) SELECT id, 2, UNHEX(REPLACE(UUID(), '-', '')), 'order.placed', ?, ? FROM waybill_transport"
	if _, err := late.ExecContext(t.Context(), insert, key, `{"seq":0}`); err != nil {
		t.Fatal(err)
	}
	sink := &recorder{}
	relaying(t, db, sink, outbox.RelayConfig{})
	if err := send(out, order{key, 1}); err != nil {
		t.Fatal(err)
	}
	await(t, "the mark is above", 60*time.Second, func() bool { return len(sink.all()) == 1 })
	commit(t, late)
	await(t, "the late row comes", 90*time.Second, func() bool { return len(sink.all()) == 2 })
}

// The server is killed under dispatchers and a relay: every message whose commit
// is known comes, and none comes whose transaction is gone.
func TestServerThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	server := testserver.StartMariaDB(t, nil)
	db := open(t, driverDSN(t, server.URL()), waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, db, "CREATE TABLE orders (id CHAR(36) PRIMARY KEY)")
	out := newOutbox(t, db, outbox.Config{})
	sink := &recorder{}
	relaying(t, db, sink, outbox.RelayConfig{Retry: noRetry})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	committed := map[string]bool{}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				var id waybill.MessageID
				err := out.InTx(context.Background(), func(ctx context.Context, tx waymysql.Tx) (err error) {
					if id, err = tx.Dispatch(ctx, order{string(rune('a' + i)), 0}); err != nil {
						return err
					}
					_, err = tx.SQL().ExecContext(ctx, "INSERT INTO orders VALUES (?)", id.String())
					return err
				})
				if err == nil {
					mu.Lock()
					committed[id.String()] = true
					mu.Unlock()
				} else {
					time.Sleep(5 * time.Millisecond) // the server is down
				}
			}
		})
	}
	for range 2 {
		before := len(sink.all())
		await(t, "messages come", 60*time.Second, func() bool { return len(sink.all()) > before+20 })
		server.Kill()
		server.Start()
	}
	cancel()
	all.Wait()
	await(t, "the outbox is empty", 60*time.Second, func() bool {
		n := 1
		err := db.Pool().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM waybill_outbox WHERE id > 0").Scan(&n)
		return err == nil && n == 0
	})
	came := map[string]bool{}
	for _, rec := range sink.recs {
		came[rec.ID.String()] = true
	}
	rows, err := db.Pool().QueryContext(t.Context(), "SELECT id FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	orders := map[string]bool{}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		orders[id] = true
	}
	if diff := cmp.Diff(orders, came); diff != "" {
		t.Errorf("orders and messages (-orders +messages):\n%s", diff)
	}
	for id := range committed {
		if !came[id] {
			t.Errorf("message %s is lost", id)
		}
	}
	t.Logf("%d known to be committed, %d came", len(committed), len(sink.recs))
}

func TestErrorsSayWhetherTheDatabaseIsOutOfReach(t *testing.T) {
	t.Parallel()
	if _, err := waymysql.Open(t.Context(), "waybill@tcp(127.0.0.1:1)/x", waymysql.Config{}); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Open where nobody listens = %v, want ErrUnavailable", err)
	}
	db, dsn := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Passwd = "nobody", "s3cr3t"
	if _, err := waymysql.Open(t.Context(), cfg.FormatDSN(), waymysql.Config{}); err == nil || errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Open with a wrong password = %v", err)
	}
	refused, err := waymysql.OpenConfig(cfg, waymysql.Config{}) // as one whose password was changed later
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	if _, err := refused.SchemaStatus(t.Context()); !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("SchemaStatus with a wrong password = %v, want ErrUnavailable", err)
	}
	readOnly := open(t, with(t, dsn, map[string]string{variable(t, dsn, "tx_read_only"): "1"}), waymysql.Config{})
	if _, err := readOnly.Claim(t.Context(), outbox.DefaultTransport, outbox.Keyed, manyRows); err == nil {
		t.Error("Claim in sessions that may only read = nil")
	}
}

// held opens the database once more, through a network that holds one of its
// connections.
func held(t *testing.T, dsn string, network *faultproxy.Hold) *waymysql.DB {
	t.Helper()
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.DialFunc, cfg.Logger = network.Dial, &mysql.NopLogger{}
	db, err := waymysql.OpenConfig(cfg, waymysql.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// The schedule of the stale snapshot, step by step: a relay's claim begins,
// another one that holds a bucket settles, and then the first one gets the bucket.
// It must not get the rows that the other one has published.
func TestClaimThatBeginsBeforeASettleSeesItsRowsGone(t *testing.T) {
	t.Parallel()
	first, dsn := newDB(t, waymysql.Config{})
	put(t, first, order{"k", 0}, order{"k", 1})
	c := claim(t, first, manyRows)
	network := faultproxy.HoldAt("FOR    UPDATE SKIP LOCKED")
	defer network.Release()
	second := held(t, dsn, network)
	claimed := make(chan outbox.Claim, 1)
	go func() {
		defer close(claimed)
		late, err := second.Claim(context.Background(), outbox.DefaultTransport, outbox.Keyed, manyRows)
		if err != nil {
			t.Error(err)
			return
		}
		claimed <- late
	}()
	select {
	case <-network.Reached:
	case <-claimed:
		t.Fatal("the second claim did not reach the lock")
	}
	settle(t, c, c.Rows())
	network.Release()
	late := <-claimed
	if late == nil {
		return
	}
	if n := len(late.Rows()); n != 0 {
		t.Errorf("the claim has %d rows, which the other relay has published", n)
	}
	settle(t, late, nil)
	put(t, first, order{"k", 2})
	if rows := look(t, second); rows != "k2" {
		t.Errorf("then it has %q, want k2", rows)
	}
}

// A snapshot of MariaDB may miss a commit and show a later one. A claim looks a second
// time before its rows are published; the row of this test is written by hand between the
// two, where a torn snapshot would have hidden it from the first.
func TestRowsThatATornSnapshotHidesComeInOrder(t *testing.T) {
	t.Parallel()
	db, dsn := newDB(t, waymysql.Config{})
	needsMariaDB(t, dsn, "MySQL takes a snapshot under a lock")
	put(t, db, order{"k", 0})
	exec(t, db, "ALTER TABLE waybill_outbox AUTO_INCREMENT = 100")
	put(t, db, order{"k", 2})
	network := faultproxy.HoldAt("e.id <= ")
	defer network.Release()
	relay := held(t, dsn, network)
	claimed := make(chan outbox.Claim, 1)
	go func() {
		defer close(claimed)
		c, err := relay.Claim(context.Background(), outbox.DefaultTransport, outbox.Keyed, manyRows)
		if err != nil {
			t.Error(err)
			return
		}
		claimed <- c
	}()
	select {
	case <-network.Reached:
	case c := <-claimed:
		t.Fatalf("the claim did not look a second time, and has %d rows", len(c.Rows()))
	}
	exec(t, db, "INSERT INTO waybill_outbox (transport, bucket, id, message_id, message_name, partition_key, headers, body, created_at) "+
		`SELECT transport, bucket, 99, UNHEX(LEFT(SHA2('1', 256), 32)), message_name, partition_key, headers, '{"key":"k","seq":1}', created_at FROM waybill_outbox WHERE id = 100`)
	network.Release()
	c := <-claimed
	if c == nil {
		return
	}
	var got []order
	for _, row := range c.Rows() {
		got = append(got, bodyOf(row.Record))
	}
	if want := []order{{"k", 0}, {"k", 1}, {"k", 2}}; !slices.Equal(got, want) {
		t.Errorf("the claim has %v, want %v", got, want)
	}
	settle(t, c, c.Rows())
}

// A low-water mark moves after the commit: while a relay does not know yet that
// its session was ended, the next claim of its process finds all its claimed rows.
func TestMarkOfASettleThatCannotCommitIsNobodys(t *testing.T) {
	t.Parallel()
	other, dsn := newDB(t, waymysql.Config{})
	put(t, other, order{"k", 0}, order{"k", 1})
	exec(t, other, "ALTER TABLE waybill_outbox AUTO_INCREMENT = 10000") // the mark is far above the first two
	put(t, other, order{"k", 2})
	network := faultproxy.HoldAt("DELETE o")
	defer network.Release()
	db := held(t, dsn, network)
	c := claim(t, db, manyRows)
	settled := make(chan error, 1)
	go func() { settled <- c.Settle(context.Background(), c.Rows(), nil) }()
	select {
	case <-network.Reached:
	case err := <-settled:
		t.Fatalf("Settle = %v, and did not reach the deletion", err)
	}
	endOthers(t, other)
	put(t, other, order{"k", 3})
	var got string
	await(t, "the key is free", 60*time.Second, func() bool { got = look(t, db); return got != "" })
	if got != "k0 k1 k2 k3" {
		t.Errorf("another claim has %q, want k0 k1 k2 k3: nothing was published", got)
	}
	network.Release()
	if err := <-settled; !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("Settle on a session that was ended = %v, want ErrUnavailable", err)
	}
}

// Claims of a queue take turns: a worker that is frozen in its own must not keep the others
// from the queue.
func TestTurnOfAFrozenWorkerEnds(t *testing.T) {
	t.Parallel()
	frozen, dsn := newDB(t, waymysql.Config{IdleTimeout: 2 * time.Second})
	other := open(t, dsn, waymysql.Config{})
	q, err := other.Queue("q", waymysql.QueueConfig{Lease: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Send(t.Context(), record(t, order{"k", 0})); err != nil {
		t.Fatal(err)
	}
	silent(t, func(begun chan<- error, over <-chan struct{}) error { return frozen.HoldTurn("q", begun, over) })
	await(t, "the other has the message", 60*time.Second, func() bool {
		ds, err := q.Receive(t.Context(), 1)
		if err != nil && !errors.Is(err, waybill.ErrUnavailable) {
			t.Fatal(err)
		}
		return len(ds) > 0
	})
}

// A promotion holds dispatch locks, and an operator's action rows.
func TestTransactionOfAFrozenProcessEnds(t *testing.T) {
	t.Parallel()
	for _, hold := range []func(*waymysql.DB, string, chan<- error, <-chan struct{}) error{(*waymysql.DB).HoldLock, (*waymysql.DB).HoldMigration} {
		frozen, dsn := newDB(t, waymysql.Config{IdleTimeout: 2 * time.Second})
		other := open(t, dsn, waymysql.Config{})
		put(t, frozen, order{"k", 0})
		silent(t, func(begun chan<- error, over <-chan struct{}) error {
			return hold(frozen, "UPDATE waybill_transport SET name = name", begun, over)
		})
		exec(t, other, "UPDATE waybill_transport SET name = name")
	}
}

// silent runs a transaction that is silent until the end of the test, and which must have lost
// its session by then.
func silent(t *testing.T, hold func(begun chan<- error, over <-chan struct{}) error) {
	t.Helper()
	begun, over, done := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	go func() { done <- hold(begun, over) }()
	t.Cleanup(func() {
		close(over)
		if err := <-done; err == nil {
			t.Error("the frozen transaction = nil, want an error")
		}
	})
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
}

// A full disk is an outage: the insert fails ahead of the COMMIT, so nothing is in doubt,
// also where one round trip has both, as for small messages.
func TestFullTablespaceIsUnavailability(t *testing.T) {
	t.Parallel()
	server := testserver.StartMariaDB(t, map[string]string{"innodb_file_per_table": "OFF", "innodb_data_file_path": "ibdata1:12M:autoextend:max:100M"})
	db := open(t, driverDSN(t, server.URL()), waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := newOutbox(t, db, outbox.Config{})
	sent := 0
	for _, kib := range []int{1024, 8} {
		body := slices.Repeat([]byte("0123456789abcdef"), kib<<6)
		for n := range 1000 {
			err := send(out, waybill.RawMessage{Name: "big", Key: "k", ContentType: "x/y", Body: body})
			if err == nil && n < 999 {
				sent++
				continue
			}
			if !errors.Is(err, waybill.ErrUnavailable) || errors.Is(err, waybill.ErrCommitUnknown) {
				t.Errorf("the dispatch of %d KiB that did not fit = %v, want ErrUnavailable and no doubt", kib, err)
			}
			break
		}
	}
	if got := count(t, db, "SELECT count(*) FROM waybill_outbox WHERE id > 0"); sent == 0 || got != sent {
		t.Errorf("%d messages are stored, want the %d that were dispatched", got, sent)
	}
}
