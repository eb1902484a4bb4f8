package waypg_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

var adminAll = admin.BlockedQuery{}

func TestAdminSeesWhatIsThere(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		put(t, db, outbox.Config{Routes: waybill.Routes{"*": {"a", "b"}}}, order{"k", 0}, order{"k", 1}, waybill.NewEnvelope(order{"k", 2}, waybill.Delay(time.Hour)))
		put(t, db, outbox.Config{To: "q", Queues: map[string]string{"q": "jobs"}}, order{"x", 0}, order{"y", 0}, waybill.NewEnvelope(order{"z", 0}, waybill.Delay(time.Hour)))

		for _, c := range []struct {
			q    admin.OutboxQuery
			want int
		}{
			{admin.OutboxQuery{}, 7}, {admin.OutboxQuery{Transport: "a"}, 3}, {admin.OutboxQuery{Key: "z"}, 1}, {admin.OutboxQuery{Name: "order.placed", Limit: 5}, 5},
			{admin.OutboxQuery{Limit: 3}, 3}, {admin.OutboxQuery{Transport: "nope"}, 0}, {admin.OutboxQuery{Transport: "jobs"}, 1},
		} {
			got, err := db.Outbox(t.Context(), c.q)
			if err != nil || len(got) != c.want || got == nil {
				t.Errorf("Outbox(%+v) = %d messages, %v, want %d", c.q, len(got), err, c.want)
			}
		}
		all, err := db.Outbox(t.Context(), admin.OutboxQuery{})
		if err != nil || all[0].Transport != "a" || all[0].Key != "k" || all[0].Bytes != len(`{"key":"k","seq":0}`) || all[0].DueAt != nil || all[4].DueAt == nil || all[0].ID.IsZero() {
			t.Errorf("Outbox = %+v, %v", all, err)
		}
		if rest, err := db.Outbox(t.Context(), admin.OutboxQuery{After: all[0].Row}); err != nil || len(rest) != 3 {
			t.Errorf("Outbox after the first = %d messages, %v, want 3 that are not delayed", len(rest), err)
		}
		stats, err := db.OutboxStats(t.Context())
		if err != nil || len(stats) != 2 || stats[0].Transport != "a" || stats[0].Pending != 2 || stats[0].Delayed != 1 || stats[0].OldestAgeSeconds < 0 || stats[0].OldestAgeSeconds > 60 {
			t.Errorf("OutboxStats = %+v, %v", stats, err)
		}
		q := newQueue(t, db, "jobs", waypg.QueueConfig{})
		ds := receiveSome(t, q, 10)
		if err := q.Retry(t.Context(), ds[0], time.Hour); err != nil {
			t.Fatal(err)
		}
		queues, err := db.QueueStats(t.Context())
		if err != nil || len(queues) != 1 || queues[0].Pending != 2 || queues[0].InFlight != 1 || queues[0].Retrying != 1 {
			t.Errorf("QueueStats = %+v, %v", queues, err)
		}
	})
}

func TestInboxIsPrunedInBatches(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		exec(t, db, `INSERT INTO waybill_inbox (handler, dedup_key, message_id, processed_at)
			SELECT 'h', 'k:n/' || n, gen_random_uuid(), now() - interval '2 hours' FROM generate_series(1, 2500) AS n;
			INSERT INTO waybill_inbox (handler, dedup_key, message_id) SELECT 'new', 'k:n/' || n, gen_random_uuid() FROM generate_series(1, 5) AS n`)
		if n, err := db.InboxOlder(t.Context(), time.Hour); err != nil || n != 2500 {
			t.Errorf("InboxOlder = %d, %v, want 2500", n, err)
		}
		var batches []int
		n, err := db.InboxPrune(t.Context(), time.Hour, func(n int) { batches = append(batches, n) })
		if err != nil || n != 2500 || len(batches) != 3 || batches[0] != 1000 {
			t.Errorf("InboxPrune = %d, %v in batches %v, want 2500 in three", n, err, batches)
		}
		stats, err := db.InboxStats(t.Context())
		if err != nil || len(stats) != 1 || stats[0].Handler != "new" || stats[0].Entries != 5 {
			t.Errorf("InboxStats = %+v, %v", stats, err)
		}
		if found, err := db.InboxLookup(t.Context(), "3"); err != nil || len(found) != 1 || found[0].DedupKey != "k:n/3" {
			t.Errorf("InboxLookup = %+v, %v", found, err)
		}
		for _, unknown := range []string{"nope", waybill.MessageID{1}.String(), "a\x00b"} {
			if _, err := db.InboxLookup(t.Context(), unknown); !errors.Is(err, waybill.ErrNotFound) {
				t.Errorf("InboxLookup(%q) = %v, want ErrNotFound", unknown, err)
			}
		}
	})
}

// An operator may delete rows that can never be published.
func TestReleaseForgetsWhatIsGone(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		put(t, db, outbox.Config{}, order{"a", 0}, order{"b", 0}, order{"", 0})
		drain(t, db, &recorder{refuse: func(*waybill.Record) error { return errRefused }}, outbox.RelayConfig{Retry: noRetry})
		exec(t, db, "DELETE FROM waybill_outbox WHERE partition_key <> 'b'; DELETE FROM waybill_outbox_unkeyed")
		if n, err := db.Release(t.Context(), admin.BlockedQuery{}); err != nil || n != 3 {
			t.Errorf("Release = %d, %v, want 3", n, err)
		}
		if left, err := db.Blocked(t.Context(), "", 0); err != nil || len(left) != 1 || left[0].Key != "b" {
			t.Errorf("Blocked = %+v, %v, want b, whose message is there", left, err)
		}
	})
}

func TestReleaseMakesBlockedKeysDue(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		put(t, db, outbox.Config{}, order{"a", 0}, order{"a", 1}, order{"b", 0}, order{"", 0}, order{"c", 0})
		ill := true
		sink := &recorder{refuse: func(rec *waybill.Record) error {
			if ill && rec.Key != "c" {
				return errRefused
			}
			return nil
		}}
		drain(t, db, sink, outbox.RelayConfig{Retry: noRetry})
		blocked, err := db.Blocked(t.Context(), "", 0)
		if err != nil || len(blocked) != 3 {
			t.Fatalf("Blocked = %+v, %v, want a, b and the one without key", blocked, err)
		}
		var unkeyed int64
		for _, b := range blocked {
			if b.LastError != errRefused.Error() || b.Failures != 1 || b.Key == "a" && b.Waiting != 2 || b.Key == "" && (b.Waiting != 1 || b.Row == 0) || b.HeadName != "order.placed" {
				t.Errorf("blocked: %+v", b)
			}
			if b.Key == "" {
				unkeyed = b.Row
			}
		}
		if one, err := db.Blocked(t.Context(), "default", 1); err != nil || len(one) != 1 {
			t.Errorf("Blocked with a limit = %+v, %v", one, err)
		}
		ill = false
		for _, step := range []struct {
			q    admin.BlockedQuery
			n    int
			want int
		}{
			{admin.BlockedQuery{Key: "nope"}, 0, 1}, {admin.BlockedQuery{Transport: "nope"}, 0, 1}, {admin.BlockedQuery{Key: "a"}, 1, 3}, {admin.BlockedQuery{Row: unkeyed}, 1, 4},
			{admin.BlockedQuery{Transport: "default"}, 1, 5},
		} {
			n, err := db.Release(t.Context(), step.q)
			if err != nil || n != step.n {
				t.Errorf("Release(%+v) = %d, %v, want %d", step.q, n, err, step.n)
			}
			drain(t, db, sink, outbox.RelayConfig{Retry: noRetry})
			if len(sink.got) != step.want {
				t.Errorf("after Release(%+v) %v came, want %d", step.q, sink.got, step.want)
			}
		}
		if blocked, err := db.Blocked(t.Context(), "", 0); err != nil || len(blocked) != 0 {
			t.Errorf("Blocked in the end = %+v, %v", blocked, err)
		}
		perKey(t, sink.got)
	})
}

func TestRelaysReportWhatIsInTheirWay(t *testing.T) {
	everywhere(t, func(t *testing.T, at opener) {
		db := open(t, at, waypg.Config{})
		put(t, db, outbox.Config{}, order{"a", 0})
		stop := relaying(t, db, &recorder{refuse: func(*waybill.Record) error { return waybill.ErrUnavailable }}, outbox.RelayConfig{})
		await(t, "a report", 60*time.Second, func() bool {
			relays, err := db.Relays(t.Context())
			return err == nil && len(relays) == 1 && relays[0].Problem != "" && relays[0].Since != nil && relays[0].Transport == "default"
		})
		stop()
		if relays, err := db.Relays(t.Context()); err != nil || len(relays) != 0 {
			t.Errorf("Relays after the end = %+v, %v", relays, err)
		}
	})
}

// The texts of a group are more than PostgreSQL takes in one array.
func TestGroupOfManyLongErrorsIsCounted(t *testing.T) {
	db := open(t, testserver.Postgres, waypg.Config{})
	exec(t, db, `INSERT INTO waybill_failed (transport, state, message_id, message_name, partition_key, headers, body, created_at, failures, last_error, source, fingerprint)
		SELECT 't', 'failed', gen_random_uuid(), 'order.placed', 'k', '{}', '', now(), 1, n || repeat('x', 2000000), 'worker', 'f1' FROM generate_series(1, 600) AS n`)
	groups, err := db.FailedGroups(t.Context(), admin.FailedQuery{})
	if err != nil || len(groups) != 1 || groups[0].Messages != 600 || !strings.HasPrefix(groups[0].Error, "600x") {
		t.Errorf("%d groups, %v, want one with the last error of 600", len(groups), err)
	}
}
