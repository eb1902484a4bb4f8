package waysqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

// pending returns the bodies that wait in the outbox, in order.
func pending(t testing.TB, db *waysqlite.DB, transport string) (all []order) {
	t.Helper()
	for _, part := range []outbox.Part{outbox.Keyed, outbox.Unkeyed, outbox.Retries} {
		claim, err := db.Claim(t.Context(), transport, part, outbox.ClaimLimit{Rows: 1 << 20, Bytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		if err := claim.Settle(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
		for _, row := range claim.Rows() {
			var o order
			if err := (waybill.JSON{}).Decode(row.Record.Body, &o); err != nil {
				t.Fatal(err)
			}
			all = append(all, o)
		}
	}
	return all
}

func count(t testing.TB, db *waysqlite.DB, query string) (n int) {
	t.Helper()
	if err := db.ReadSQL().QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFailedCommitIsKnownToHaveFailed(t *testing.T) {
	db := open(t, waysqlite.Config{})
	if _, err := db.SQL().Exec("CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (p INTEGER REFERENCES p DEFERRABLE INITIALLY DEFERRED)"); err != nil {
		t.Fatal(err)
	}
	out := newOutbox(t, db, outbox.Config{})
	err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
		if _, err := tx.SQL().Exec("INSERT INTO c VALUES (7)"); err != nil {
			return err
		}
		_, err := tx.Dispatch(ctx, order{"k", 1})
		return err
	})
	if err == nil || errors.Is(err, waybill.ErrCommitUnknown) {
		t.Errorf("InTx = %v, want a foreign key error", err)
	}
	if got := pending(t, db, outbox.DefaultTransport); len(got) != 0 {
		t.Errorf("%v left behind", got)
	}
}

func TestPoolOfSeveralConnectionsIsRefused(t *testing.T) {
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "waybill.db")+"?_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := waysqlite.New(pool, waysqlite.Config{}); err == nil || !strings.Contains(err.Error(), "SetMaxOpenConns(1)") {
		t.Errorf("New with an unlimited pool = %v, want a refusal that says what to call", err)
	}
}
