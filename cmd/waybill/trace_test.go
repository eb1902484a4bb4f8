package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/otlp"
	"github.com/waybill-go/waybill/waycli/sqlite"
)

// An exported is a span that a collector has received, with the service that has sent it.
type exported struct {
	*trace.Span
	service string
}

// A traceCollector is a collector of OTLP over HTTP.
type traceCollector struct {
	mu    sync.Mutex
	spans []exported // guarded by mu
	bytes []byte     // guarded by mu; all requests
}

// ServeHTTP implements http.Handler.
func (c *traceCollector) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var export collector.ExportTraceServiceRequest
	if err = errors.Join(err, proto.Unmarshal(body, &export)); err != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes = append(c.bytes, body...)
	for _, r := range export.GetResourceSpans() {
		service := ""
		for _, a := range r.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, s := range r.GetScopeSpans() {
			for _, span := range s.GetSpans() {
				c.spans = append(c.spans, exported{span, service})
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	answer, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
	_, _ = w.Write(answer)
}

// find returns the span of a name and message.
func (c *traceCollector) find(t *testing.T, name, message string) exported {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.GetName() == name && (message == "" || text(s, "waybill.message.name") == message) {
			return s
		}
	}
	t.Fatalf("no span %q of %q in %d", name, message, len(c.spans))
	return exported{}
}

func text(s exported, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

func dwell(s exported, key string) float64 {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetDoubleValue()
		}
	}
	return -1
}

type tracedInvoice struct {
	OrderID string `json:"orderId"`
}

func (tracedInvoice) MessageName() string { return "invoice.paid" }

// tracedBus is a service that takes orders by HTTP and handles them, and their invoices.
func tracedBus(ctx context.Context, svc *waycli.Service) (*waybill.Bus, error) {
	db, err := sqlite.DB(ctx, svc)
	if err != nil {
		return nil, err
	}
	cfg, err := svc.Outbox()
	if err != nil {
		return nil, err
	}
	out, err := outbox.New(db, cfg)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	bus := waybill.NewBus("shop")
	inbox.Handle(bus, db, "bill", func(ctx context.Context, tx *sql.Tx, m orderPlaced) error {
		_, err := out.Dispatch(ctx, tx, tracedInvoice(m))
		return err
	})
	inbox.Handle(bus, db, "mail", func(_ context.Context, _ *sql.Tx, m tracedInvoice) error {
		_, err := fmt.Fprintln(os.Stderr, "mailed")
		return err
	})
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, span := otel.Tracer("shop").Start(req.Context(), "POST /orders")
		defer span.End()
		err := out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[*sql.Tx]) error {
			_, err := tx.Dispatch(ctx, orderPlaced{canary})
			return err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})}
	svc.Go("http", func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { _ = server.Close() })()
		fmt.Fprintf(os.Stderr, "http at %s\n", listener.Addr())
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	return bus, nil
}

// runTraced is the program of TestOneTraceRunsFromRequestToLastHandler.
func runTraced() int {
	ctx, stop := waycli.WithSignals(context.Background())
	defer stop()
	program := app()
	program.Name, program.Bus, program.Traces, program.Commands = "shop", tracedBus, otlp.Traces, nil
	return waycli.Main(ctx, program, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// A request dispatches an order, a relay in another process publishes it to RabbitMQ, its
// handler dispatches an invoice, which goes the same way to its handler.
func TestOneTraceRunsFromRequestToLastHandler(t *testing.T) {
	t.Parallel()
	broker, err := url.Parse(testserver.RabbitMQ(t))
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, "database: sqlite://./waybill.db\ntransports: { work: { dsn: \""+broker.String()+"?queue=work\" } }\nworkers: { work: {} }\nmessages: { order.placed: {}, invoice.paid: {} }\n")
	s.run("schema", "up", "--transports")
	spans := &traceCollector{}
	server := httptest.NewServer(spans)
	defer server.Close()
	s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_EXPORTER_OTLP_HEADERS=authorization=" + canary}
	relay := s.start("waybill", "relay", "--pprof")
	shop := s.start("traced", "run", "http", "workers")
	at := ""
	shop.await("its address", func() bool {
		_, said, ok := strings.Cut(shop.said(), "http at ")
		at, _, _ = strings.Cut(said, "\n")
		return ok
	})
	res, err := http.Post("http://"+at+"/orders", "text/plain", nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("POST /orders: %v, %v", res, err)
	}
	_ = res.Body.Close()
	shop.await("the mail", func() bool { return strings.Contains(shop.said(), "mailed\n") })
	shop.stop()
	relay.stop()

	const order, invoice = "order.placed", "invoice.paid"
	find := func(name, message string) exported { t.Helper(); return spans.find(t, name, message) }
	request := find("POST /orders", "")
	chain := []struct {
		service       string
		child, parent exported
	}{
		{"shop", find("create work", order), request},
		{"waybill", find("send work", order), find("create work", order)},
		{"shop", find("process work", order), find("create work", order)},
		{"shop", find("create work", invoice), find("process work", order)},
		{"waybill", find("send work", invoice), find("create work", invoice)},
		{"shop", find("process work", invoice), find("create work", invoice)},
	}
	for _, c := range chain {
		if !bytes.Equal(c.child.GetTraceId(), request.GetTraceId()) || !bytes.Equal(c.child.GetParentSpanId(), c.parent.GetSpanId()) {
			t.Errorf("%s of %s is below %s of trace %s, want %s of %s", c.child.GetName(), text(c.child, "waybill.message.name"),
				hex.EncodeToString(c.child.GetParentSpanId()), hex.EncodeToString(c.child.GetTraceId()), hex.EncodeToString(c.parent.GetSpanId()), hex.EncodeToString(request.GetTraceId()))
		}
		if c.child.service != c.service {
			t.Errorf("%s is of the service %s, want %s", c.child.GetName(), c.child.service, c.service)
		}
		name, _, _ := strings.Cut(c.child.GetName(), " ")
		if key := map[string]string{"send": "waybill.outbox.dwell", "process": "waybill.queue.dwell"}[name]; key != "" {
			if d := dwell(c.child, key); d < 0 || d > 30 {
				t.Errorf("%s has %s %v", c.child.GetName(), key, d)
			}
		}
	}
	if n := len(spans.spans); n != 7 {
		t.Errorf("%d spans, want 7", n)
	}
	password, _ := broker.User.Password()
	for _, secret := range []string{canary, password + "@"} {
		if bytes.Contains(spans.bytes, []byte(secret)) || strings.Contains(relay.said()+shop.said(), secret) {
			t.Errorf("a body, or a password, is in a span or the log: %q", secret)
		}
	}
}

// A collector that is away, or a wrong setting, is a line of the log, and no message's concern.
func TestCollectorThatIsAwayHoldsUpNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, adminFile)
	s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_EXPORTER_OTLP_TIMEOUT=100"}
	said := s.run("dispatch", "order.placed", "{}")
	if n := strings.Count(said, "traces not exported"); n != 1 {
		t.Errorf("a collector that is away is logged %d times:\n%s", n, said)
	}
	s.env = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}
	if said := s.run("dispatch", "order.placed", "{}"); !strings.Contains(said, `OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\": this program speaks http/protobuf`) {
		t.Errorf("of a protocol that it does not speak it says:\n%s", said)
	}
	s.env = nil
	if said := s.run("relay", "--drain"); !strings.Contains(said, "2 messages published") {
		t.Error(said)
	}
}
