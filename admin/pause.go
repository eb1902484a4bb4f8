package admin

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// A Pause is a transport whose workers receive no messages.
type Pause struct {
	Transport string    `json:"transport"`
	Since     time.Time `json:"since"`
	Actor     string    `json:"actor"`
	Reason    string    `json:"reason"` // may be empty
}

// maxTransport, maxReason and maxActor bound the texts of a Pause, in bytes.
const maxTransport, maxReason, maxActor = 190, 1000, 255

// NewPause returns the pause of a transport by the actor of ctx, for databases. A name that no
// transport can have, and a reason of more than 1000 bytes, are errors.
func NewPause(ctx context.Context, transport, reason string) (Pause, error) {
	p := Pause{Transport: transport, Actor: ActionOf(ctx, nil).Actor, Reason: reason}
	if transport == "" || len(transport) > maxTransport || !storable(transport) {
		return p, fmt.Errorf("pause: %q is no name of a transport", transport)
	}
	if len(reason) > maxReason || !storable(reason) {
		return p, fmt.Errorf("pause of %s: the reason has %d bytes: want at most %d, of text", transport, len(reason), maxReason)
	}
	if len(p.Actor) > maxActor {
		p.Actor = strings.ToValidUTF8(p.Actor[:maxActor], "")
	}
	return p, nil
}

// storable reports whether a column of text takes s everywhere.
func storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
