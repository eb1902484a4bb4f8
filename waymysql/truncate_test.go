package waymysql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
)

// A running relay notices within a couple of seconds that ids begin anew,
// whatever it has seen before, and with as few or as many messages as there were.
func TestRelayNoticesATruncate(t *testing.T) {
	t.Parallel()
	for name, statements := range map[string][]string{
		"TRUNCATE":                   {"TRUNCATE TABLE waybill_outbox"},
		"DELETE and AUTO_INCREMENT":  {"DELETE FROM waybill_outbox", "ALTER TABLE waybill_outbox AUTO_INCREMENT = 1"},
		"a table in place of it":     {"CREATE TABLE waybill_new LIKE waybill_outbox", "RENAME TABLE waybill_outbox TO waybill_old, waybill_new TO waybill_outbox"},
		"TRUNCATE of what was ahead": {"INSERT INTO waybill_outbox (transport, bucket, id, message_id, message_name, partition_key, body) SELECT id, -1, 5000000, UNHEX(REPEAT('00', 16)), 'x', '', '' FROM waybill_transport", "TRUNCATE TABLE waybill_outbox"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := newDB(t, waymysql.Config{})
			out := newOutbox(t, db, outbox.Config{})
			sink := &recorder{}
			relaying(t, db, sink, outbox.RelayConfig{})
			keys := otherBuckets(10)
			const first = 400
			for i := range first {
				if err := send(out, order{keys[i%10], i / 10}); err != nil {
					t.Fatal(err)
				}
			}
			await(t, "the marks are warm", 60*time.Second, func() bool { return len(sink.all()) == first })
			time.Sleep(2500 * time.Millisecond) // surveys
			for _, s := range statements {
				exec(t, db, s)
			}
			start := time.Now()
			for i := range 100 {
				if err := send(out, order{keys[i%10], (first + i) / 10}, order{fmt.Sprint("new", i), 0}); err != nil {
					t.Fatal(err)
				}
			}
			await(t, "low ids come", 60*time.Second, func() bool { return len(sink.all()) == first+200 })
			t.Logf("they came within %v", time.Since(start))
			perKey(t, sink.all())
		})
	}
}
