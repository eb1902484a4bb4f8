package waypg_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waypg"
)

// A producer that writes rows by hand is held to the bounds of names and keys, of every table
// that takes messages.
func TestTablesRefuseTextsOutOfBounds(t *testing.T) {
	t.Parallel()
	db := open(t, testserver.Postgres, waypg.Config{})
	insert := func(table, columns, values, name string) error {
		_, err := db.Pool().Exec(t.Context(), fmt.Sprintf("INSERT INTO %s (%s, message_id, message_name, body) VALUES (%s, gen_random_uuid(), %s, '')", table, columns, values, name))
		return err
	}
	for table, c := range map[string]struct {
		columns, good string
		bad           []string
	}{
		"waybill_outbox":         {"transport, bucket, partition_key", "1, 1, 'k'", []string{"1, 1, ''", "1, 1, repeat('ä', 128)"}},
		"waybill_outbox_unkeyed": {"transport, held", "1, 0", []string{"1, 3", "1, -1"}},
		"waybill_delayed":        {"due_at, queue, partition_key", "now(), 'q', ''", []string{"now(), '', ''", "now(), 'q', repeat('ä', 128)"}},
		"waybill_queue":          {"queue, partition_key, held", "'q', '', 0", []string{"'', '', 0", "'q', repeat('ä', 128), 0", "'q', '', 3"}},
		"waybill_retry":          {"queue, partition_key, held", "'q', '', 0", []string{"'', '', 0", "'q', repeat('ä', 128), 0", "'q', '', 3"}},
	} {
		if err := insert(table, c.columns, c.good, "repeat('ä', 95)"); err != nil {
			t.Errorf("%s: %v", table, err)
		}
		refused := map[string]error{"no name": insert(table, c.columns, c.good, "''"), "a name of 191 bytes": insert(table, c.columns, c.good, "repeat('ä', 95) || 'x'")}
		for _, values := range c.bad {
			refused[values] = insert(table, c.columns, values, "'order.placed'")
		}
		for what, err := range refused {
			if server := (*pgconn.PgError)(nil); !errors.As(err, &server) || server.Code != "23514" {
				t.Errorf("%s takes %s: %v", table, what, err)
			}
		}
	}
}
