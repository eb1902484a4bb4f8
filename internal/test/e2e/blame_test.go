package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/test/faultproxy"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
)

const (
	badName = "order.bad"
	badKey  = "the bad one"
	elseX   = "elsewhere" // an exchange that only messages named badName go to
)

// A culprit is a message that the broker closes the channel or connection for,
// or that cannot be sent at all.
type culprit struct {
	name    string
	prepare func(s *stack) // after everything is declared
	route   func(name string) (exchange, routingKey string)
	write   func(s *stack) (id string) // nil: a harmless body
	reason  string                     // part of the operator's error text
	unsent  bool                       // it never leaves this process
}

var culprits = []culprit{{
	name:   "its exchange was deleted",
	route:  func(string) (string, string) { return elseX, "" },
	reason: `exchange "elsewhere", routing key "order.bad": 404 NOT_FOUND`,
	prepare: func(s *stack) {
		s.must(s.ch.ExchangeDelete(elseX, false, false))
	},
}, {
	name:    "no permission on its exchange",
	route:   func(string) (string, string) { return elseX, "" },
	reason:  `exchange "elsewhere", routing key "order.bad": 403 ACCESS_REFUSED`,
	prepare: func(s *stack) { s.mayWrite("^" + transport + "$") },
}, {
	name:   "a header of 200 KiB",
	reason: "header size is 20",
	unsent: true,
	write: func(s *stack) (id string) {
		made, err := waybill.NewMessageID()
		s.must(err)
		var number int
		s.must(s.one("SELECT id FROM waybill_transport", &number))
		s.exec("INSERT INTO waybill_outbox (transport, bucket, message_id, message_name, partition_key, headers, body) VALUES (?, ?, ?, ?, ?, ?, '{}')",
			number, outbox.Bucket(badKey, 64), s.on.id(made), badName, badKey, fmt.Sprintf("{\"large\": %q}", strings.Repeat("x", 200*1024)))
		return made.String()
	},
}, {
	name:   "a routing key of 300 bytes",
	route:  func(string) (string, string) { return "", strings.Repeat("k", 300) },
	reason: "routing key length is 300, the limit is 255",
	unsent: true,
}, {
	name:   "a body over the broker's limit",
	reason: "406 PRECONDITION_FAILED",
	write:  func(s *stack) string { return s.bad(strings.Repeat("x", 200<<10)) },
}}

// bad dispatches the bad one, with pad in its body.
func (s *stack) bad(pad string) (id string) {
	s.Helper()
	s.types.AllowRaw(badName)
	s.must(s.app.inTx(s.Context(), func(ctx context.Context, u unit) error {
		got, err := u.dispatch(ctx, waybill.RawMessage{Name: badName, Key: badKey, Body: fmt.Appendf(nil, "{\"Pad\":%q}", pad)})
		id = got.String()
		return err
	}))
	return id
}

const maxMessage = 128 << 10 // bytes, in the configuration of the broker

// management asks the management plugin for something.
func management(tb testing.TB, api, method, path, body string) []byte {
	tb.Helper()
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequest(method, api+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	if resp.StatusCode/100 != 2 {
		tb.Fatalf("%s %s: %s", method, path, resp.Status)
	}
	return text
}

// A strict broker has a limit on messages and makes virtual hosts.
type strict struct {
	server *testserver.Server
	hosts  atomic.Int64
}

// host returns the URL of a new virtual host, for a user with all permissions
// there.
func (b *strict) host(t *testing.T) (address, vhost string) {
	vhost = fmt.Sprint("v", b.hosts.Add(1))
	api := b.server.API()
	management(t, api, "PUT", "/api/vhosts/"+vhost, "")
	management(t, api, "PUT", "/api/permissions/"+vhost+"/waybill", `{"configure":".*","write":".*","read":".*"}`)
	u, err := url.Parse(b.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + vhost
	return u.String(), vhost
}

func TestCulpritAloneIsBlocked(t *testing.T) {
	t.Parallel()
	b := &strict{server: testserver.StartRabbitMQ(t, map[string]string{"max_message_size": fmt.Sprint(maxMessage)})}
	for _, on := range kinds {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range culprits {
				for _, killed := range []bool{false, true} {
					if killed && c.unsent {
						continue // there is nothing on the wire to strike at
					}
					name := c.name
					if killed {
						name += ", and the connection is cut each time"
					}
					t.Run(name, func(t *testing.T) { t.Parallel(); c.isBlocked(t, on, b, killed) })
				}
			}
			t.Run("nothing but a connection that is cut each time", func(t *testing.T) {
				t.Parallel()
				culprit{reason: "connection ended 4 times with this message in flight"}.isBlocked(t, on, b, true)
			})
		})
	}
}

func (c culprit) isBlocked(t *testing.T, on *kind, b *strict, killed bool) {
	address, vhost := b.host(t)
	s := on.stackAt(t, on.fresh(t), address)
	s.mayWrite = func(pattern string) {
		management(t, b.server.API(), "PUT", "/api/permissions/"+vhost+"/waybill", fmt.Sprintf(`{"configure":".*","write":%q,"read":".*"}`, pattern))
	}
	s.must(s.ch.ExchangeDeclare(elseX, "topic", true, false, false, false, nil))
	s.must(s.ch.QueueBind(everyone, "#", elseX, false, nil))
	w := s.watch(everyone)
	if c.prepare != nil {
		c.prepare(s)
	}
	proxy, through := s.through(address)
	config := wayamqp.Config{URL: through}
	if c.route != nil {
		config.Routes = func(name string) (string, string) {
			if name == badName {
				return c.route(name)
			}
			return "", ""
		}
	}
	good := keyNames("good", 300)
	s.dispatch(good[:150], 1)
	if c.write == nil {
		c.write = func(s *stack) string { return s.bad("") }
	}
	id := c.write(s)
	s.dispatch(good[150:], 1)
	var cuts atomic.Int64
	if killed {
		proxy.OnBytes(func(dir faultproxy.Direction, b []byte) faultproxy.Action {
			if dir == faultproxy.ToServer && bytes.Contains(b, []byte(id)) {
				cuts.Add(1)
				return faultproxy.CutBefore
			}
			return faultproxy.Pass
		})
	}
	cfg := quickRelay
	cfg.Retry = waybill.Backoff{}
	s.relay(s.open(s.database), s.publisher(config), cfg)
	took := w.await(len(good), patience)
	t.Logf("the others were delivered after %v, with %d cuts", took.Round(time.Millisecond), cuts.Load())
	if limit := 40 * time.Second; took > limit {
		t.Errorf("the others took %v, want less than %v", took, limit)
	}
	// What cuts a connection is told from a broker that is down by what else gets
	// through.
	reason := c.reason
	if killed {
		reason = "connection ended"
	}
	more := 0
	s.eventually(patience, fmt.Sprintf("message %s is blocked with %q, and no other", id, reason), func() bool {
		s.dispatch([]string{"later"}, 1)
		more++
		time.Sleep(100 * time.Millisecond)
		blocked := s.blocked()
		return len(blocked) == 1 && blocked[0].HeadID.String() == id && blocked[0].Failures > 0 && strings.Contains(blocked[0].LastError, reason)
	})
	w.await(len(good)+more, patience)
	s.eventually(patience, "only the bad one is left", func() bool { return s.left() == 1 })
	w.judge(0)
	if killed && cuts.Load() == 0 {
		t.Error("nothing was cut")
	}
}

func TestDispatchRefusesWhatNoBrokerTakes(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		s.types.AllowRaw("order.placed")
		raw := func(key string, body int) waybill.RawMessage {
			return waybill.RawMessage{Name: "order.placed", Key: key, ContentType: "application/octet-stream", Body: make([]byte, body)}
		}
		long := strings.Repeat("x", 256)
		for what, dispatch := range map[string]func(ctx context.Context, u unit) error{
			"a body over the limit":     dispatching(raw("k", 1<<20+1)),
			"headers over the limit":    dispatching(raw("k", 1), waybill.Header("large", strings.Repeat("x", 200<<10))),
			"a long header name":        dispatching(raw("k", 1), waybill.Header(long, "x")),
			"a long partition key":      dispatching(raw(long, 1)),
			"a long correlation id":     dispatching(raw("k", 1), waybill.CorrelationID(long)),
			"the header expiration":     dispatching(raw("k", 1), waybill.Header("expiration", "x")),
			"the header user_id":        dispatching(raw("k", 1), waybill.Header("user_id", "guest")),
			"the header CC":             dispatching(raw("k", 1), waybill.Header("CC", "everyone")),
			"the header BCC":            dispatching(raw("k", 1), waybill.Header("BCC", "everyone")),
			"a name that is not a name": dispatching(waybill.RawMessage{Name: strings.Repeat("n", 191)}),
		} {
			if err := s.app.inTx(t.Context(), dispatch); err == nil || errors.Is(err, waybill.ErrUnavailable) {
				t.Errorf("%s: %v, want that it is refused", what, err)
			}
		}
		if got := s.left(); got != 0 {
			t.Errorf("%d rows were written, want none", got)
		}
	})
}

func dispatching(m waybill.RawMessage, stamps ...waybill.Stamp) func(ctx context.Context, u unit) error {
	return func(ctx context.Context, u unit) error {
		_, err := u.dispatch(ctx, m, slices.Clone(stamps)...)
		return err
	}
}
