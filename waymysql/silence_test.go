package waymysql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// commitQuery is COMMIT as a COM_QUERY.
const commitQuery = "\x03COMMIT"

// ends runs call, which meets a server that has vanished, and returns its error.
func ends(t *testing.T, network *faultproxy.Proxy, within time.Duration, call func() error) (err error) {
	t.Helper()
	returned := make(chan error, 1)
	go func() { returned <- call() }()
	select {
	case err = <-returned:
	case <-time.After(within):
		t.Errorf("no end within %v", within)
		network.Reset()
		err = <-returned
	}
	if network.Counts().Swallowed == 0 {
		t.Error("nothing was swallowed")
	}
	return err
}

// A server that has vanished answers nothing until TCP gives up, a quarter of an hour later.
func TestCommitWithoutAnswerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, dsn := newDB(t, waymysql.Config{})
	address, network := proxied(t, dsn)
	db := open(t, address, waymysql.Config{})
	if _, err := db.PruneExpired(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	network.SwallowRepliesTo(commitQuery)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := ends(t, network, 10*time.Second, func() error { _, err := db.PruneExpired(ctx, 1); return err })
	if !errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("PruneExpired = %v, want ErrUnavailable", err)
	}
}

func TestUnitWhoseBeginIsNotAnsweredEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, dsn := newDB(t, waymysql.Config{})
	address, network := proxied(t, dsn)
	db := open(t, address, waymysql.Config{})
	unit := func(ctx context.Context) error {
		return db.InTx(ctx, func(context.Context, *sql.Tx) error { return nil })
	}
	if err := unit(t.Context()); err != nil {
		t.Fatal(err)
	}
	network.SwallowRepliesTo("\x03SAVEPOINT")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := ends(t, network, 10*time.Second, func() error { return unit(ctx) }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("InTx = %v, want the end of its context", err)
	}
}

// MySQL's units commit by a statement of its own, whatever their context: for the idle timeout.
func TestUnitWhoseCommitIsNotAnsweredEnds(t *testing.T) {
	t.Parallel()
	_, dsn := newDB(t, waymysql.Config{})
	address, network := proxied(t, dsn)
	db := open(t, address, waymysql.Config{IdleTimeout: 3 * time.Second})
	if err := db.WithoutCompounds(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := ends(t, network, 20*time.Second, func() error {
		return db.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			network.SwallowRepliesTo(commitQuery)
			return nil
		})
	})
	if !errors.Is(err, waybill.ErrCommitUnknown) || !errors.Is(err, context.DeadlineExceeded) { // and not by the server's end of the session
		t.Errorf("InTx = %v, want ErrCommitUnknown by a deadline", err)
	}
}

// A rebucket that is interrupted while it waits for a dispatcher leaves no relay paused.
func TestInterruptedRebucketPausesNoRelay(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	put(t, db, order{"k", 0})
	other, err := db.Pool().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback()
	if _, err := other.ExecContext(t.Context(), "UPDATE waybill_outbox_gate SET bucket = bucket"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.ExecContext(t.Context(), "SELECT bucket FROM waybill_outbox_gate FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := db.Rebucket(ctx, 128, false); err == nil {
		t.Fatal("Rebucket = nil beside a dispatcher")
	}
	if n := count(t, db, "SELECT COUNT(*) FROM waybill_meta WHERE name = 'relays_paused_until'"); n != 0 {
		t.Error("relays are still paused")
	}
}

// Tables that were restored, or another server, may give the number of a transport to another
// one, whose messages must not go to the wrong broker.
func TestNumberOfAnotherTransportIsNotClaimed(t *testing.T) {
	t.Parallel()
	for part, o := range map[outbox.Part]order{outbox.Keyed: {"k", 1}, outbox.Unkeyed: {"", 1}} {
		t.Run(part.String(), func(t *testing.T) {
			t.Parallel()
			db, _ := newDB(t, waymysql.Config{})
			put(t, db, o) // which registers the transport
			take := func(transport string) (n int) {
				c, err := db.Claim(t.Context(), transport, part, manyRows)
				if err != nil {
					t.Fatal(err)
				}
				n = len(c.Rows())
				if n > 0 {
					settle(t, c, c.Rows())
				}
				return n
			}
			if n := take(outbox.DefaultTransport); n != 1 {
				t.Fatalf("%d rows, want 1", n)
			}
			put(t, db, o)
			exec(t, db, "UPDATE waybill_transport SET name = 'other' WHERE name = ?", outbox.DefaultTransport)
			for range 3 {
				if n := take(outbox.DefaultTransport); n != 0 {
					t.Fatalf("%d rows of another transport were claimed", n)
				}
			}
			if n := take("other"); n != 1 {
				t.Errorf("%d rows of the transport under its name, want 1", n)
			}
		})
	}
}

// Tables that were restored, or another server, may have given a transport another number: a
// process that only dispatches learns it from its first statement that finds none.
func TestDispatchKnowsNewNumbersOfTransports(t *testing.T) {
	t.Parallel()
	for _, msgs := range [][]any{{order{"k", 1}}, {order{"", 1}}, {order{"k", 1}, order{"l", 1}, order{"", 1}}} {
		t.Run(fmt.Sprintf("%d messages, key %q", len(msgs), msgs[0].(order).Key), func(t *testing.T) {
			t.Parallel()
			db, _ := newDB(t, waymysql.Config{})
			out := newOutbox(t, db, outbox.Config{})
			renumber := func(to int) {
				exec(t, db, "UPDATE waybill_outbox_gate SET transport = ? WHERE name = ?", to, outbox.DefaultTransport)
				exec(t, db, "UPDATE waybill_outbox_bucket SET transport = ?", to)
				exec(t, db, "UPDATE waybill_transport SET id = ? WHERE name = ?", to, outbox.DefaultTransport)
			}
			renumber(40)
			if err := send(out, msgs...); err != nil {
				t.Fatalf("a unit of work: %v", err)
			}
			renumber(41)
			tx := begin(t, db.Pool())
			if _, err := out.DispatchAll(t.Context(), tx, msgs...); err != nil {
				t.Fatalf("a transaction of the application's: %v", err)
			}
			commit(t, tx)
			for _, to := range []int{40, 41} {
				n := count(t, db, fmt.Sprintf("SELECT (SELECT COUNT(*) FROM waybill_outbox WHERE transport = %[1]d AND id > 0) + (SELECT COUNT(*) FROM waybill_outbox_unkeyed WHERE transport = %[1]d AND id > 0)", to))
				if n != len(msgs) {
					t.Errorf("%d messages have the number %d, want %d", n, to, len(msgs))
				}
			}
		})
	}
}
