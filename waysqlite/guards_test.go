package waysqlite_test

import (
	"context"
	"errors"
	"testing"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waysqlite"
)

func TestLaneIsClaimedOnceAtATime(t *testing.T) {
	db := open(t, waysqlite.Config{})
	out := newOutbox(t, db, outbox.Config{})
	for n := range 2 {
		if err := out.InTx(t.Context(), func(ctx context.Context, tx waysqlite.Tx) error {
			_, err := tx.Dispatch(ctx, order{"a", n})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	max := outbox.Max{Rows: 9, Bytes: 1 << 20}
	one, err := db.Claim(t.Context(), "default", max)
	if err != nil {
		t.Fatal(err)
	}
	two, err := db.Claim(t.Context(), "default", max)
	if err != nil {
		t.Fatal(err)
	}
	if len(one.Rows()) != 2 || len(two.Rows()) != 0 {
		t.Errorf("two claims hold the same key: %d and %d rows", len(one.Rows()), len(two.Rows()))
	}
	if err := one.Settle(t.Context(), nil, []outbox.Failure{{Row: one.Rows()[0], Err: errors.New("x")}}); err != nil {
		t.Fatal(err)
	}
	three, _ := db.Claim(t.Context(), "default", max)
	if f := three.Rows()[1].Failures; f != 0 {
		t.Errorf("the follower, never published, has %d failures", f)
	}
}
