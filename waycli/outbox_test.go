package waycli

import (
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
