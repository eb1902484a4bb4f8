package waypg_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// The only connection of the pool belongs to the caller's transaction.
func TestDispatchInATransactionNeedsNoOtherConnection(t *testing.T) {
	t.Parallel()
	dsn := testserver.Postgres(t)
	other := openAt(t, dsn, waypg.Config{})
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	db := over(t, cfg, waypg.Config{})
	out := newOutbox(t, db, outbox.Config{})
	dispatch := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return pgx.BeginFunc(ctx, db.Pool(), func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT 1"); err != nil {
				return err
			}
			_, err := out.Dispatch(ctx, tx, order{"k", 0})
			return err
		})
	}
	if err := dispatch(); err != nil {
		t.Errorf("the first dispatch = %v", err)
	}
	if _, err := other.Rebucket(t.Context(), 128, false); err != nil {
		t.Fatal(err)
	}
	if err := dispatch(); !errors.Is(err, outbox.ErrBucketsChanged) {
		t.Errorf("the first dispatch after a rebucket = %v, want ErrBucketsChanged", err)
	}
	if err := dispatch(); err != nil {
		t.Errorf("the next dispatch = %v", err)
	}
}

// A transaction that began before a rebucket must not write by the old number of
// buckets, even if its snapshot shows it.
func TestOldSnapshotDoesNotHideARebucket(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	out := newOutbox(t, db, outbox.Config{})
	put(t, db, outbox.Config{}, order{"k", 0}) // the statement is prepared
	tx, err := db.Pool().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM waybill_meta"); err != nil {
		t.Fatal(err)
	}
	if _, err := openAtSame(t, db).Rebucket(t.Context(), 256, false); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Dispatch(t.Context(), tx, order{"k", 1}); !errors.Is(err, outbox.ErrBucketsChanged) {
		t.Errorf("Dispatch = %v, want ErrBucketsChanged", err)
	}
}

func TestNewTransportBesideARebucketGetsTheNewNumber(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	newOutbox(t, db, outbox.Config{})
	for i := range 12 {
		other := openAtSame(t, db)
		var both sync.WaitGroup
		both.Go(func() {
			if err := other.AddTransports(t.Context(), fmt.Sprint("t", i)); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			if _, err := db.Rebucket(t.Context(), []int{64, 256}[i%2], false); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		if _, err := db.SchemaStatus(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, "INSERT INTO waybill_outbox_bucket SELECT 1, b FROM generate_series(256, 511) AS b; DELETE FROM waybill_outbox_bucket WHERE transport = 2 AND bucket = 5")
	if _, err := db.SchemaStatus(t.Context()); !errors.Is(err, admin.ErrSchema) {
		t.Errorf("SchemaStatus with wrong bucket rows = %v", err)
	}
	if _, err := db.Rebucket(t.Context(), 64, false); err != nil {
		t.Error(err)
	}
	if _, err := db.SchemaStatus(t.Context()); err != nil {
		t.Errorf("SchemaStatus after a rebucket = %v", err)
	}
}
