package waybill_test

import (
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

// A bus would send the message twice, and say nothing.
func TestUniqueKeyWithoutAnOutboxIsRefused(t *testing.T) {
	b := waybill.NewBus("main")
	out := new(outbound)
	b.AddSender("out", out)
	b.Route("order.paid.*", "out")
	handleAny[placed](b)()
	for _, msg := range []any{placed{}, paid{}} {
		_, err := b.Dispatch(t.Context(), msg, waybill.Unique{Key: "k", For: time.Hour})
		var invalid *waybill.InvalidError
		if !errors.As(err, &invalid) || len(out.sent) > 0 {
			t.Errorf("Dispatch of %T = %v, sent %d, want an error and nothing sent", msg, err, len(out.sent))
		}
	}
}
