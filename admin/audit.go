package admin

import (
	"context"
	"encoding/json"
	"os"
	"os/user"
)

// An Action is the origin of an operator's change. RetryFailed, RemoveFailed, Release,
// ReleaseRetries, SkipParked and the methods of DeadLetters record it in the audit table, in each
// transaction that changes something, with the number of messages.
type Action struct {
	Actor  string          // user@host
	Filter json.RawMessage // selection as a JSON object; empty, and for EditFailed, the method's own arguments
}

type actionKey struct{}

// WithAction returns a context whose changes are recorded as a's.
func WithAction(ctx context.Context, a Action) context.Context {
	return context.WithValue(ctx, actionKey{}, a)
}

// ActionOf returns the Action of ctx, or that of this process with the filter otherwise,
// which must be possible to encode.
func ActionOf(ctx context.Context, otherwise any) Action {
	a, ok := ctx.Value(actionKey{}).(Action)
	if !ok {
		a.Actor = Actor()
	}
	if len(a.Filter) == 0 {
		a.Filter, _ = json.Marshal(otherwise)
	}
	return a
}

// Actor returns user@host of this process.
func Actor() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
