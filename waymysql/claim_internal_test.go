package waymysql

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/lane"
	"github.com/waybill-go/waybill/outbox"
)

// Each lookup costs the server's planner a quarter of a millisecond, whatever it
// finds: a blocked key must not make the claims of others slow, nor a blocked route
// those of other routes.
func TestLookupsAreForBucketsWithVeryManyBlockedKeys(t *testing.T) {
	routes := func(n int, waits bool) map[string]blockedRoute {
		all := map[string]blockedRoute{"works.again": {3, false}}
		for i := range n {
			all[fmt.Sprint("route", i)] = blockedRoute{1, waits}
		}
		return all
	}
	in := func(bucket int16) map[int16]bool { return map[int16]bool{bucket: true} }
	waiting := map[string]blockedKey{"k": {failures: 1}}
	const inKeys = 3 // of a bucket with blocked keys
	const names = "CASE WHEN e.message_name NOT IN (X'726f75746530') THEN e.body END"
	for _, test := range []struct {
		name    string
		aside   aside
		lookups int
		known   int // buckets whose keys are left out by name
		body    string
	}{
		{"nothing", aside{}, 0, 0, "e.body"},
		{"a key", aside{buckets: in(7), keys: waiting, waiting: map[int16][]string{7: {"X'6b'"}}}, 0, 1, "e.body"},
		{"an unserialized key", aside{buckets: in(7 + outbox.Unserialized), keys: waiting, waiting: map[int16][]string{7 + outbox.Unserialized: {"X'6b'"}}}, 0, 1, "e.body"},
		{"a key that is due", aside{buckets: in(7), keys: waiting}, 0, 0, "e.body"},
		{"many keys", aside{buckets: in(7)}, inKeys, 0, "e.body"},
		{"many unserialized keys", aside{buckets: in(7 + outbox.Unserialized)}, inKeys, 0, "e.body"},
		{"a route", aside{routes: routes(1, true)}, 0, 0, names},
		{"a route that is due", aside{routes: routes(1, false)}, 0, 0, "e.body"},
		{"many keys and a route", aside{buckets: in(7), routes: routes(1, true)}, inKeys, 0, names},
		{"very many routes", aside{routes: routes(maxRouteNames+1, true)}, lane.MaxBuckets, 0, "CASE WHEN IFNULL((SELECT i.next_attempt_at"},
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
		if got := strings.Count(text, "AND e.partition_key NOT IN (X'6b')"); got != test.known {
			t.Errorf("%s: in %d buckets the key is left out by its name, want %d", test.name, got, test.known)
		}
		if got := strings.Count(text, test.body); got != lane.MaxBuckets {
			t.Errorf("%s: %d of %d buckets read bodies by %s", test.name, got, lane.MaxBuckets, test.body)
		}
	}
}
