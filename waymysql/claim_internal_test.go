package waymysql

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

// Each lookup costs the server's planner a quarter of a millisecond, whatever it
// finds: a blocked key must not make the claims of other buckets slow, nor a blocked
// route those of other routes.
func TestOnlyBucketsWithABlockedKeyHaveLookups(t *testing.T) {
	routes := func(n int, waits bool) map[string]blockedRoute {
		all := map[string]blockedRoute{"works.again": {3, false}}
		for i := range n {
			all[fmt.Sprint("route", i)] = blockedRoute{1, waits}
		}
		return all
	}
	const inKeys = 3 // of a bucket with blocked keys
	for _, test := range []struct {
		name    string
		aside   aside
		lookups int
		body    string
	}{
		{"nothing", aside{}, 0, "e.body"},
		{"a key", aside{buckets: map[int16]bool{7: true}}, inKeys, "e.body"},
		{"an unserialized key", aside{buckets: map[int16]bool{7 + outbox.Unserialized: true}}, inKeys, "e.body"},
		{"rows without a key", aside{buckets: map[int16]bool{lane.Unkeyed: true}}, 0, "e.body"},
		{"a route", aside{routes: routes(1, true)}, 0, "CASE WHEN e.message_name NOT IN (X'726f75746530') THEN e.body END"},
		{"a route that is due", aside{routes: routes(1, false)}, 0, "e.body"},
		{"a key and a route", aside{map[int16]bool{7: true}, routes(1, true)}, inKeys, "CASE WHEN e.message_name NOT IN (X'726f75746530') THEN e.body END"},
		{"very many routes", aside{routes: routes(maxRouteNames+1, true)}, lane.MaxBuckets, "CASE WHEN IFNULL((SELECT i.next_attempt_at"},
	} {
		c := &claim{Batch: lane.NewBatch(lane.New(1, 64)), holder: holder{db: &DB{schema: "app", prefix: "waybill_"}}, aside: test.aside}
		var parts []part
		for bucket := range int16(lane.MaxBuckets) {
			parts = append(parts, part{bucket, 0, 10})
		}
		text := c.rowsOf(parts)
		if got := strings.Count(text, "outbox_blocked"); got != test.lookups {
			t.Errorf("%s: a claim of %d buckets has %d lookups, want %d", test.name, lane.MaxBuckets, got, test.lookups)
		}
		if got := strings.Count(text, test.body); got != lane.MaxBuckets {
			t.Errorf("%s: %d of %d buckets read bodies by %s", test.name, got, lane.MaxBuckets, test.body)
		}
	}
}
