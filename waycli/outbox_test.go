package waycli

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/admin"
)

// A delayed message that its table refuses has a due time, and is never due.
func TestRefusedDelayedMessageIsBlocked(t *testing.T) {
	due := time.Now().Add(time.Hour)
	if got := stateOf(admin.OutboxMessage{DueAt: &due}); !strings.HasPrefix(got, "due in ") {
		t.Errorf("a delayed message is %q", got)
	}
	for _, due := range []time.Time{time.Now().Add(-time.Hour), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} {
		if got := stateOf(admin.OutboxMessage{DueAt: &due, Blocked: true}); got != "blocked" {
			t.Errorf("a refused message is %q", got)
		}
	}
}

// routesBlocked is a database with many blocked routes of two transports, and a key behind one.
type routesBlocked struct {
	admin.Database
	reads int // of the outbox
}

func (d *routesBlocked) BlockedKeys(_ context.Context, q admin.BlockedKeysQuery) (found []admin.BlockedKey, err error) {
	for n := range 200 {
		if q.Key == "" {
			found = append(found, admin.BlockedKey{Transport: fmt.Sprint("events", n%2), Route: fmt.Sprint("name", n)})
		}
	}
	return found, nil
}

func (d *routesBlocked) Outbox(_ context.Context, q admin.OutboxQuery) ([]admin.OutboxMessage, error) {
	d.reads++
	return []admin.OutboxMessage{{Name: map[string]string{"events0": "name0", "events1": "name7"}[q.Transport]}, {Name: "other"}}, nil
}

// All that waits of a key is read once for a transport, not once for each of its blocked routes.
func TestKeyIsReadOnceForAllBlockedRoutes(t *testing.T) {
	db := &routesBlocked{}
	found, err := holding(t.Context(), db, admin.BlockedKeysQuery{Key: "k"})
	if err != nil || len(found) != 2 || found[0].Route != "name0" || found[1].Route != "name7" || found[1].Waiting != 2 {
		t.Errorf("the key is held by %+v, %v; want the routes name0 and name7, with two messages each", found, err)
	}
	if db.reads != 2 {
		t.Errorf("the outbox was read %d times, want once for each of 2 transports", db.reads)
	}
}
