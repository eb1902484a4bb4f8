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
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// The result does not depend on the settings of the session that creates the
// tables, dispatches, relays or handles.
func TestSettingsOfTheSessionChangeNothing(t *testing.T) {
	t.Parallel()
	isolation := variable(t, driverDSN(t, testserver.MariaDB(t)), "tx_isolation")
	for name, params := range map[string]map[string]string{
		"not strict":           {"sql_mode": "''"},
		"ANSI_QUOTES":          {"sql_mode": "'ANSI_QUOTES,STRICT_ALL_TABLES'"},
		"ANSI":                 {"sql_mode": "'ANSI'"},
		"NO_BACKSLASH_ESCAPES": {"sql_mode": "'NO_BACKSLASH_ESCAPES'"},
		"PIPES_AS_CONCAT":      {"sql_mode": "'PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE,IGNORE_SPACE,PAD_CHAR_TO_FULL_LENGTH'"},
		"TRADITIONAL":          {"sql_mode": "'TRADITIONAL,ONLY_FULL_GROUP_BY,NO_ZERO_DATE,NO_AUTO_VALUE_ON_ZERO'"},
		"east":                 {"time_zone": "'+05:30'"},
		"west":                 {"time_zone": "'-11:00'", "sql_mode": "''"},
		"latin1":               {},
		"serializable":         {isolation: "'SERIALIZABLE'"},
		"read uncommitted":     {isolation: "'READ-UNCOMMITTED'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := with(t, driverDSN(t, testserver.MariaDB(t)), params)
			if name == "latin1" {
				dsn += "?charset=latin1&collation=latin1_swedish_ci"
			}
			db := open(t, dsn, waymysql.Config{})
			if _, err := db.SchemaUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			out := newOutbox(t, db, outbox.Config{})
			b := newBilling(t, db)

			const key = `ä\ "' `
			const words = `ä \ " ' %`
			text := waybill.Header("text", words)
			dispatch := func(seq int, stamps ...waybill.Stamp) {
				t.Helper()
				if seq%2 == 0 { // in a unit of work
					if err := out.InTx(t.Context(), func(ctx context.Context, tx waymysql.Tx) error {
						_, err := tx.Dispatch(ctx, order{key, seq}, append(stamps, text)...)
						return err
					}); err != nil {
						t.Fatal(err)
					}
					return
				}
				tx := begin(t, pool(t, dsn)) // in a transaction of the application's own
				if _, err := out.Dispatch(t.Context(), tx, order{key, seq}, append(stamps, text)...); err != nil {
					t.Fatal(err)
				}
				commit(t, tx)
			}
			dispatch(0)
			dispatch(1)
			if _, err := db.Pool().ExecContext(t.Context(), "CALL waybill_dispatch('order.placed', ?, '{}', ?)", key, `{"key":"ä\\ \"' ","seq":2}`); err != nil {
				t.Fatal(err)
			}
			dispatch(3, waybill.Delay(300*time.Millisecond))
			dispatch(4, waybill.Delay(time.Hour))
			if n := count(t, db, "SELECT COUNT(DISTINCT bucket) FROM waybill_outbox WHERE bucket = ?", outbox.Bucket(key, 64)); n != 1 {
				t.Errorf("%d buckets, want that of Go", n)
			}
			all, err := db.Outbox(t.Context(), admin.OutboxQuery{Key: key})
			if err != nil || len(all) != 5 {
				t.Fatalf("Outbox = %+v, %v", all, err)
			}
			for _, m := range all {
				if time.Since(m.CreatedAt).Abs() > time.Minute || m.DueAt != nil && time.Until(*m.DueAt) > time.Hour {
					t.Errorf("%+v: a time is off", m)
				}
			}

			refuse := true
			sink := &recorder{refuse: func(*waybill.Record) error {
				defer func() { refuse = false }()
				if refuse {
					return fmt.Errorf("ä: %w", errRefused)
				}
				return nil
			}}
			drain(t, db, sink, outbox.RelayConfig{Retry: noRetry})
			blocked, err := db.Blocked(t.Context(), "", 0)
			if err != nil || len(blocked) != 1 || blocked[0].Key != key || !strings.HasPrefix(blocked[0].LastError, "ä: ") || time.Since(blocked[0].FirstFailedAt).Abs() > time.Minute {
				t.Errorf("Blocked = %+v, %v", blocked, err)
			}
			time.Sleep(300 * time.Millisecond) // until the delayed one is due
			if _, err := db.Release(t.Context(), admin.BlockedQuery{Key: key}); err != nil {
				t.Fatal(err)
			}
			drain(t, db, sink, outbox.RelayConfig{Retry: noRetry})
			if diff := cmp.Diff([]order{{key, 0}, {key, 1}, {key, 2}, {key, 3}}, sink.all()); diff != "" {
				t.Errorf("came (-want +got):\n%s", diff)
			}
			for i, rec := range sink.recs {
				if i != 2 && rec.Headers["text"] != words || time.Since(rec.DispatchedAt).Abs() > time.Minute {
					t.Errorf("headers %q, dispatched at %v", rec.Headers, rec.DispatchedAt)
				}
			}

			// The inbox, and a queue.
			q, err := db.Queue("q", waymysql.QueueConfig{})
			if err != nil {
				t.Fatal(err)
			}
			rec := record(t, order{key, 0})
			rec.Headers = map[string]string{"text": words}
			if err := q.Send(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
			ds, err := q.Receive(t.Context(), 1)
			if err != nil || len(ds) != 1 || ds[0].Record.Headers["text"] != words {
				t.Fatalf("Receive = %+v, %v", ds, err)
			}
			for range 2 {
				if err := b.receive(ds[0].Record); err != nil {
					t.Error(err)
				}
			}
			if err := q.Ack(t.Context(), ds...); err != nil {
				t.Error(err)
			}
			if got := b.effects(); got != 1 {
				t.Errorf("%d effects, want 1", got)
			}
			if n, err := db.InboxOlder(t.Context(), time.Minute); err != nil || n != 0 {
				t.Errorf("%d entries are older than a minute, %v", n, err)
			}
			// A name that is too long must not be cut to that of another handler.
			long := inbox.Entry{Handler: strings.Repeat("h", 191), DedupKey: "k:1", MessageID: rec.ID}
			if err := db.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				_, err := db.InsertTx(ctx, tx, long)
				return err
			}); err == nil {
				t.Error("a handler with a name of 191 bytes was remembered")
			}
		})
	}
}

// A statement that ends its session each time is a failure of its message: as an outage it
// would be tried for ever.
func TestStatementThatEndsItsSessionIsNoOutage(t *testing.T) {
	t.Parallel()
	db, _ := newDB(t, waymysql.Config{})
	err := db.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "KILL CONNECTION_ID()")
		return err
	})
	if err == nil || errors.Is(err, waybill.ErrTransactionLost) || errors.Is(err, waybill.ErrUnavailable) {
		t.Errorf("InTx = %v, want the statement's error alone", err)
	}
}
