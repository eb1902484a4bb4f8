package waymysql_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waymysql"
	"github.com/waybill-go/waybill/worker"
)

// ofSmallPackets is a database whose server takes packets of 1 MiB.
func ofSmallPackets(t *testing.T) *waymysql.DB {
	t.Helper()
	server := testserver.StartMariaDB(t, map[string]string{"max_allowed_packet": "1M"})
	db := open(t, driverDSN(t, server.URL()), waymysql.Config{})
	if _, err := db.SchemaUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

// Messages of a unit of work, or of a retry queue, that each fit in a packet of the
// server are not put together in a statement that does not.
func TestMessagesThatFitInAPacketAreNotRefusedTogether(t *testing.T) {
	t.Parallel()
	db := ofSmallPackets(t)
	out := newOutbox(t, db, outbox.Config{})
	for name, sizes := range map[string][]int{"many": {90_000, 90_000, 90_000, 90_000, 90_000, 90_000, 90_000}, "a large one behind others": {1000, 200_000, 500_000}} {
		msgs, moves := []any{}, []worker.Move{}
		for i, n := range sizes {
			rec := record(t, order{"o-1", i})
			rec.Body = bytes.Repeat([]byte{'"'}, n) // which doubles in a statement
			msgs = append(msgs, waybill.RawMessage{Name: "big", Key: "o-1", ContentType: "x/y", Body: rec.Body})
			moves = append(moves, worker.Move{Delivery: &waybill.Delivery{Record: rec}})
		}
		if err := send(out, msgs...); err != nil {
			t.Errorf("%s: dispatch: %v", name, err)
		}
		retries, err := db.RetryQueue("billing")
		if err != nil {
			t.Fatal(err)
		}
		if err := retries.Add(t.Context(), moves...); err != nil {
			t.Errorf("%s: add to the retries: %v", name, err)
		}
	}
}

// The server closes the connection on a packet that is too large, and its error may be lost
// with that. It is no outage: a worker would try to store that message forever, and no other.
func TestMessageTooLargeForAPacketIsRefused(t *testing.T) {
	t.Parallel()
	db := ofSmallPackets(t)
	retries, err := db.RetryQueue("billing")
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range [][]byte{bytes.Repeat([]byte("x"), 8<<20), bytes.Repeat([]byte("\""), 1000_000)} { // the second is escaped
		rec := record(t, order{"o-1", 0})
		rec.Body = body
		err := retries.Add(t.Context(), worker.Move{Delivery: &waybill.Delivery{Record: rec}})
		if err == nil || errors.Is(err, waybill.ErrUnavailable) || !strings.Contains(err.Error(), "max_allowed_packet") {
			t.Errorf("add of %d bytes = %v, want a refusal by name of the setting", len(body), err)
		}
	}
}
