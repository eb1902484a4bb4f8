package sqlcore

import (
	"context"
	"time"
)

// KeepAlive calls ping three times in each idle timeout, until ctx ends or stop is called. A
// transaction whose process lives does not lose its session to the timeout then, however
// slow it is; that of a frozen process does, and so does one that ignores the end of its
// context. stop waits for a running ping, which has idle/3: the connection is the caller's again.
func KeepAlive(ctx context.Context, idle time.Duration, ping func(ctx context.Context)) (stop func()) {
	armed := make(chan *time.Timer, 1) // nil once stopped
	armed <- time.AfterFunc(idle/3, func() {
		timer := <-armed
		defer func() { armed <- timer }()
		if timer != nil && ctx.Err() == nil {
			pinging, cancel := context.WithTimeout(ctx, idle/3)
			ping(pinging)
			cancel()
			timer.Reset(idle / 3)
		}
	})
	return func() {
		if timer := <-armed; timer != nil {
			timer.Stop()
		}
		armed <- nil
	}
}
