package middleware

import (
	"context"
	"fmt"

	"golang.org/x/time/rate"

	"github.com/waybill-go/waybill"
)

// Throttle lets through up to limit received messages a second, and up to burst at once.
// One that is too early waits, in its handler's slot and before any inbox transaction. If
// its context ends first, or would, the error wraps waybill.ErrUnavailable: no attempt is
// counted. Dispatched messages pass. The buses that share one Throttle share its rate;
// processes do not. It panics on a limit that is not positive, and a burst below 1.
func Throttle(limit rate.Limit, burst int) waybill.Middleware {
	if !(limit > 0) || burst < 1 {
		panic(fmt.Errorf("middleware: throttle of %v messages a second, burst %d: want more than 0, and at least 1", limit, burst))
	}
	limiter := rate.NewLimiter(limit, burst)
	return waybill.Middleware{Name: "throttle", Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		return func(ctx context.Context, env *waybill.Envelope) error {
			if _, received := waybill.Last[waybill.Received](env); received {
				if err := limiter.Wait(ctx); err != nil {
					return fmt.Errorf("throttle: no slot in time: %w: %w", waybill.ErrUnavailable, err)
				}
			}
			return next(ctx, env)
		}
	}}
}
