package middleware

import (
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
)

// For applies mw to the envelopes for which match reports true; others pass it by. It panics
// on a nil match.
func For(match func(env *waybill.Envelope) bool, mw waybill.Middleware) waybill.Middleware {
	if match == nil {
		panic(fmt.Errorf("middleware: For needs a match for %q", mw.Name))
	}
	return waybill.Middleware{Name: mw.Name, Wrap: func(next waybill.HandlerFunc) waybill.HandlerFunc {
		wrapped := mw.Wrap(next)
		return func(ctx context.Context, env *waybill.Envelope) error {
			if match(env) {
				return wrapped(ctx, env)
			}
			return next(ctx, env)
		}
	}}
}

// Message matches the messages of a name, as "order.placed": dispatched ones by the name
// under which they travel, received ones by that of the newest version.
func Message(name string) func(env *waybill.Envelope) bool {
	return func(env *waybill.Envelope) bool {
		got, _ := waybill.Last[waybill.MessageName](env)
		return string(got) == name
	}
}

// Transport matches the messages received from a transport, by the name that its worker has.
func Transport(name string) func(env *waybill.Envelope) bool {
	return func(env *waybill.Envelope) bool {
		from, ok := waybill.Last[waybill.Received](env)
		return ok && from.Transport == name
	}
}
