package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
)

func TestNilFunctionPanicsAtRegistration(t *testing.T) {
	p := newFixture(t)
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, `the function of handler "billing" is nil`) {
			t.Errorf("panic %q, want one that names the handler", got)
		}
	}()
	var fn func(context.Context, *memory.Tx, paid) error
	inbox.Handle(p.bus, p.db, "billing", fn)
}

// Dispatch refuses an empty key; another producer may send one.
func TestEmptyIdempotencyKeyIsNoKey(t *testing.T) {
	p := newFixture(t)
	p.handle("billing", fine)
	for _, i := range []string{"i-1", "i-2"} {
		rec := p.record(i)
		rec.Headers = map[string]string{waybill.HeaderIdempotencyKey: ""}
		if err := p.receive(rec); err != nil {
			t.Fatal(err)
		}
	}
	p.wantEffects("billing i-1", "billing i-2")
}

func TestDelayLongerThanTheRetentionIsNotTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFixture(t)
		p.handle("billing", fine)
		q := p.db.Queue("q")
		if err := q.Send(t.Context(), p.record("i-1", waybill.Delay(31*24*time.Hour))); err != nil {
			t.Fatal(err)
		}
		ds, err := q.Receive(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.receive(ds[0].Record); err != nil {
			t.Errorf("first delivery, at its due time: %v", err)
		}
	})
}
