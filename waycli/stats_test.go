package waycli

import (
	"slices"
	"testing"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
)

// A silent database is one whose relays do not report.
type silent struct{ Database }

func (silent) Traits() outbox.StoreTraits { return outbox.StoreTraits{} }

// A transport that has another name in the file than its messages have is relayed by nobody.
func TestMessagesOfARenamedTransportAreAProblem(t *testing.T) {
	stats := statsResult{Outbox: []admin.OutboxStats{{Transport: "old", Pending: 2}, {Transport: "new", Pending: 3}, {Transport: "gone"}}}
	s := &session{cfg: &config.Config{Transports: map[string]config.Transport{"new": {}}}}
	want := []statsProblem{{"old", "2 pending, and the configuration has no transport old"}}
	if got := s.notRelayed(silent{}, stats); !slices.Equal(got, want) {
		t.Errorf("problems %+v, want %+v", got, want)
	}
	s.cfg.Transports = nil // only --database: nothing is known of transports
	if got := s.notRelayed(silent{}, stats); len(got) > 0 {
		t.Errorf("problems %+v without a file", got)
	}
}
