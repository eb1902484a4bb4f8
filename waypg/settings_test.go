package waypg_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waypg"
)

// A role or a server that would end a relay's claims is refused by the name of
// the setting, and may still be looked at.
func TestRelayIsRefusedWhereItsClaimsWouldBeEnded(t *testing.T) {
	t.Parallel()
	server := testserver.StartPostgres(t, nil)
	owner := openAt(t, server.URL(), waypg.Config{})
	put(t, owner, outbox.Config{}, order{"k", 0})
	exec(t, owner, "CREATE ROLE hasty LOGIN SUPERUSER")
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User("hasty")
	lead := func(idle time.Duration) error {
		db := connect(t, u.String(), waypg.Config{IdleTimeout: idle})
		// A page, as operators read it: a listing without a limit is compiled by the server, which may
		// take longer than 900 ms.
		if _, err := db.Outbox(t.Context(), admin.OutboxQuery{Limit: 10}); err != nil {
			t.Errorf("a listing = %v", err)
		}
		var refused error
		await(t, "an answer", 60*time.Second, func() bool {
			release, err := db.StartRelay(t.Context())
			if err == nil {
				release()
			}
			refused = err
			return !errors.Is(err, waybill.ErrUnavailable)
		})
		return refused
	}
	version := count(t, owner, "SELECT current_setting('server_version_num')::int")
	for _, c := range []struct {
		set, name string
		idle      time.Duration
		refused   bool
	}{
		{"statement_timeout = '29s'", "statement_timeout", 0, true},
		{"statement_timeout = '30s'", "statement_timeout", 0, false},
		{"statement_timeout = '30s'", "statement_timeout", 31 * time.Second, true},
		{"statement_timeout = '900ms'", "statement_timeout", 0, true},
		{"statement_timeout = 0", "statement_timeout", 0, false},
		{"transaction_timeout = '5s'", "transaction_timeout", 0, true},
		{"transaction_timeout = '1min'", "transaction_timeout", 0, false},
		{"idle_in_transaction_session_timeout = '1s'", "", 0, false}, // each claim sets its own
		{"default_transaction_read_only = on", "default_transaction_read_only", 0, true},
	} {
		if c.name == "transaction_timeout" && version < 170000 {
			continue
		}
		exec(t, owner, "ALTER ROLE hasty SET "+c.set)
		err := lead(c.idle)
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), c.name+" = ") {
			t.Errorf("%s, idle %v: Lead = %v, want refused %v", c.set, c.idle, err, c.refused)
		}
		exec(t, owner, "ALTER ROLE hasty RESET ALL")
	}
	// The relay says so, and does not try for ever.
	exec(t, owner, "ALTER ROLE hasty SET statement_timeout = '5s'")
	relay := newRelay(t, connect(t, u.String(), waypg.Config{}), &recorder{}, outbox.RelayConfig{})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := relay.Run(ctx); err == nil || !strings.Contains(err.Error(), "statement_timeout = 5000 ms") {
		t.Errorf("Run = %v, want the setting's name", err)
	}
	exec(t, owner, "ALTER ROLE hasty RESET ALL")
	sink := &recorder{}
	drain(t, connect(t, u.String(), waypg.Config{}), sink, outbox.RelayConfig{})
	if len(sink.got) != 1 {
		t.Errorf("%v came, want one message", sink.got)
	}

	// The idle timeout of the application's role does not matter: that of the
	// claim wins.
	exec(t, owner, "ALTER ROLE hasty SET idle_in_transaction_session_timeout = '300ms'")
	put(t, owner, outbox.Config{}, order{"k", 1})
	db := connect(t, u.String(), waypg.Config{})
	c := claim(t, db, "default", manyRows)
	time.Sleep(700 * time.Millisecond)
	settle(t, c, c.Rows())
}
