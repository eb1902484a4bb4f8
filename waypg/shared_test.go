package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waypg"
)

var someEntry = inbox.Entry{Handler: "h", DedupKey: "1", MessageID: waybill.MessageID{1}}

// A pgx connection is not safe for concurrent use.
func TestKeepAliveAndStatementsShareAConnection(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	exec(t, db, "CREATE TABLE numbers (n int)")
	err := db.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := db.InsertTx(ctx, tx, someEntry); err != nil {
			return err
		}
		pinging, stop := context.WithCancel(ctx)
		var pings sync.WaitGroup
		pings.Go(func() {
			for pinging.Err() == nil {
				waypg.Ping(ctx, tx)
			}
		})
		defer pings.Wait()
		defer stop()
		for range 50 {
			if err := everyStatement(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if n := count(t, db, "SELECT count(*) FROM numbers"); n != 50*4 {
		t.Errorf("%d rows, want %d", n, 50*4)
	}
}

// everyStatement uses all methods of tx that send or receive. Four of its rows stay.
func everyStatement(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO numbers VALUES (1)")
	var n int
	err = errors.Join(err, tx.QueryRow(ctx, "SELECT count(*) FROM numbers").Scan(&n))
	rows, failed := tx.Query(ctx, "SELECT generate_series(1, 2000)")
	for range 100 {
		rows.Next()
		_, wrong := rows.Values()
		err = errors.Join(err, wrong, rows.Scan(&n))
	}
	rows.Close()
	err = errors.Join(err, failed, rows.Err())
	batch := &pgx.Batch{}
	batch.Queue("INSERT INTO numbers VALUES (2)")
	batch.Queue("SELECT generate_series(1, 1000)")
	batch.Queue("SELECT 7")
	results := tx.SendBatch(ctx, batch)
	_, failed = results.Exec()
	err = errors.Join(err, failed)
	rows, failed = results.Query()
	_, wrong := pgx.CollectRows(rows, pgx.RowTo[int])
	err = errors.Join(err, failed, wrong, results.QueryRow().Scan(&n), results.Close())
	_, failed = tx.CopyFrom(ctx, pgx.Identifier{"numbers"}, []string{"n"}, pgx.CopyFromRows([][]any{{3}, {4}}))
	_, wrong = tx.Prepare(ctx, "numbers", "SELECT n FROM numbers")
	err = errors.Join(err, failed, wrong)
	for _, end := range []func(pgx.Tx) error{func(in pgx.Tx) error { return in.Rollback(ctx) }, func(in pgx.Tx) error { return in.Commit(ctx) }} {
		inner, failed := tx.Begin(ctx)
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		_, failed = inner.Exec(ctx, "SELECT 1")
		err = errors.Join(err, failed, end(inner))
	}
	return err
}

// The connection cannot send anything meanwhile, and is kept alive afterwards.
func TestOpenResultIsLeftAloneByTheKeepAlive(t *testing.T) {
	t.Parallel()
	const idle = 6 * time.Second
	db := open(t, testserver.Postgres, waypg.Config{IdleTimeout: idle})
	err := db.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := db.InsertTx(ctx, tx, someEntry); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT generate_series(1, 2000)")
		if err != nil {
			return err
		}
		n := 0
		for ; rows.Next(); n++ {
			if n == 10 {
				time.Sleep(idle * 2 / 5) // a ping
			}
		}
		if rows.Err() != nil || n != 2000 {
			return fmt.Errorf("%d rows, %w", n, rows.Err())
		}
		time.Sleep(idle * 3 / 2)
		_, err = tx.Exec(ctx, "SELECT 1")
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A shorter timeout of the role, or of the database, is an operator's decision.
func TestIdleTimeoutOfAnInboxTransactionIsNotRaised(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{"0": "30s", "5s": "5s", "1500ms": "1500ms", "2min": "30s"} {
		dsn := testserver.Postgres(t)
		db := openAt(t, dsn, waypg.Config{})
		exec(t, db, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET idle_in_transaction_session_timeout = %L', current_database(), '"+set+"'); END $$")
		db = connect(t, dsn, waypg.Config{})
		err := db.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := db.InsertTx(ctx, tx, someEntry)
			var got string
			err = errors.Join(err, tx.QueryRow(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&got))
			if got != want {
				t.Errorf("where it is %q the transaction has %s, want %s", set, got, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
