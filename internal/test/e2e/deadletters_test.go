package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waycli/postgres"
	"github.com/waybill-go/waybill/worker"
)

const (
	largeBody = 16_000_000 // a server of MySQL takes packets of 16 MiB unless it is told otherwise
	larges    = 4
	// strangePrefetch bounds the messages in flight of strangeWorker: so many of the
	// transport, and as many of the retry queue.
	strangePrefetch = 2
	// peakMemory is what strangeWorker may have in memory at the most: four messages, in
	// some copies each, under the race detector.
	peakMemory = 1 << 30
	// strangeKey is the key that the program of the first worker panics over.
	strangeKey = "panic"
)

// strangeMessages are messages of other programs that the first worker cannot handle.
func (s *stack) strangeMessages() map[string]amqp.Publishing {
	s.Helper()
	many := amqp.Table{}
	for i := range 300 {
		many[fmt.Sprint("h-", i)] = strings.Repeat("v", 100)
	}
	named := func(name, body string) amqp.Publishing {
		id, err := waybill.NewMessageID()
		s.must(err)
		return amqp.Publishing{MessageId: id.String(), Type: name, ContentType: "application/json", Body: []byte(body)}
	}
	all := map[string]amqp.Publishing{
		"undecodable":  named("key.counted", "\xff\x00<xml/>"),
		"truncated":    named("key.counted", `{"Key":"","N":`),
		"unknown name": named("nobody.knows", `{"N":1}`),
		"300 headers":  named("key.counted", `{"N":2}`),
		"KeyOf panics": named("key.counted", `{"N":3,"Pad":"`+strangeKey+`"}`),
		"without id":   {Type: "key.counted", ContentType: "application/json", Body: []byte(`{"N":4}`)},
	}
	headers := all["300 headers"]
	headers.Headers = many
	all["300 headers"] = headers
	for i := range larges {
		frame := fmt.Sprintf(`{"N":%d,"Pad":""}`, 10+i)
		all[fmt.Sprint("16 MB ", i)] = named("key.counted", strings.Replace(frame, `""`, `"`+strings.Repeat("x", largeBody-len(frame))+`"`, 1))
	}
	return all
}

// strangeWorker is a worker of a program that decodes into a struct, and fails; or, mended,
// of one that takes any body.
func strangeWorker(ctx context.Context, db database, r role) error {
	bus := waybill.NewBus("main")
	bus.Serializer().Limits.Body = 2 * largeBody
	cfg := wayamqp.Config{URL: r.Broker, Queue: handled, Prefetch: strangePrefetch}
	if r.Place == withStrangers {
		waybill.Handle(bus, "count", func(context.Context, counted) error { return errDown })
		cfg.KeyOf = func(rec *waybill.Record) string {
			if bytes.Contains(rec.Body[:min(len(rec.Body), 100)], []byte(strangeKey)) {
				panic("a nil map")
			}
			return ""
		}
	} else {
		for _, name := range []string{"key.counted", "nobody.knows"} {
			waybill.HandleRaw(bus, "count", name, func(ctx context.Context, m waybill.RawMessage) error {
				id, _ := waybill.Last[waybill.MessageID](waybill.EnvelopeFrom(ctx))
				pool, statement := db.look("INSERT INTO effects (k, n, message_id) VALUES (?, ?, ?)")
				_, err := pool.ExecContext(ctx, statement, "", len(m.Body), id.String())
				return err
			})
		}
	}
	c, err := wayamqp.NewConsumer(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	w, err := worker.New(bus, c, worker.Config{
		Transport: handled, Store: db, Concurrency: strangePrefetch, Prefetch: strangePrefetch, MaxRetries: 1,
		Retry: waybill.Backoff{Delay: 10 * time.Millisecond}, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

// Whatever another program sends is a dead letter as it came, which an operator can see.
// The memory of the worker is bounded by its prefetch. After a fix all of it is handled.
func TestStrangeMessagesAreKeptAndHandledAfterAFix(t *testing.T) {
	onBoth(t, func(t *testing.T, on *kind) {
		s := on.stack(t)
		s.queue(handled)
		sent := s.strangeMessages()
		for _, m := range sent {
			s.must(s.ch.PublishWithContext(t.Context(), "", handled, false, false, m))
		}
		p := s.start(role{Place: withStrangers})
		s.eventually(2*patience, "all are dead letters", func() bool {
			return s.count("SELECT count(*) FROM waybill_failed WHERE state = 'failed'") == len(sent)
		})
		peak := p.peakMemory()
		p.signal(syscall.SIGTERM)
		p.await(patience)
		t.Logf("%d bodies of %d MB, prefetch %d: the worker had %d MB in memory at the most", larges, largeBody/1_000_000, strangePrefetch, peak>>20)
		if peak > peakMemory {
			t.Errorf("the worker had %d MB in memory, want at most %d", peak>>20, peakMemory>>20)
		}

		letters, err := s.db.Failed(t.Context(), admin.FailedQuery{})
		s.must(err)
		var numbers []int64
		for _, m := range letters {
			numbers = append(numbers, m.Number)
			s.wantRaw(m, sent)
		}
		mended := s.start(role{Place: withMended})
		for _, number := range numbers {
			n, err := s.db.RetryFailed(t.Context(), number)
			if s.must(err); n != 1 {
				t.Errorf("RetryFailed(%d) = %d, want 1", number, n)
			}
		}
		s.eventually(2*patience, "all are handled", func() bool {
			return s.count("SELECT count(DISTINCT message_id) FROM effects") == len(sent)
		})
		s.noFailures()
		t.Logf("the mended worker had %d MB in memory at the most", mended.peakMemory()>>20)
		bytes := 0
		for _, m := range sent {
			bytes += len(m.Body)
		}
		if rows, got := s.count("SELECT count(*) FROM effects"), s.count("SELECT sum(n) FROM effects"); rows != len(sent) || got != bytes {
			t.Errorf("%d effects of %d bytes, want %d of %d", rows, got, len(sent), bytes)
		}
	})
}

// wantRaw compares a dead letter, as failed show has it, with what was sent.
func (s *stack) wantRaw(m admin.FailedMessage, sent map[string]amqp.Publishing) {
	s.Helper()
	file := filepath.Join(s.TempDir(), "waybill.yaml")
	s.must(os.WriteFile(file, []byte(fmt.Sprintf("database: %q\ntransports: { handled: { dsn: \"queue://handled\" } }\n", s.database)), 0o600))
	app := waycli.App{Databases: map[string]waycli.Driver{"postgres": postgres.Driver(), "mysql": mysql.Driver()}}
	var out, log bytes.Buffer
	if exit := waycli.Main(s.Context(), app, []string{"failed", "show", fmt.Sprint(m.Number), "--json", "--config", file}, strings.NewReader(""), &out, &log); exit != 0 {
		s.Errorf("failed show exits with %d: %s", exit, &log)
		return
	}
	var shown struct {
		Headers  map[string]string
		Text     *string `json:"body"`
		Bytes    []byte  `json:"body_base64"`
		Attempts []admin.FailedAttempt
	}
	s.must(json.Unmarshal(out.Bytes(), &shown))
	body := shown.Bytes
	if shown.Text != nil {
		body = []byte(*shown.Text)
	}
	for what, p := range sent {
		if !bytes.Equal(p.Body, body) {
			continue
		}
		retried := p.Type == "key.counted" && m.Handler == "count"
		if m.Name != p.Type || p.MessageId != "" && m.ID.String() != p.MessageId || len(shown.Headers) < len(p.Headers) || len(shown.Attempts) != m.Failures || retried != (m.Failures == 2) || !retried && m.Failures != 1 {
			s.Errorf("%s: dead letter %+v with %d headers and %d attempts", what, m, len(shown.Headers), len(shown.Attempts))
		}
		for name, value := range p.Headers {
			if shown.Headers[name] != value {
				s.Errorf("%s: header %s is %q, want %q", what, name, shown.Headers[name], value)
			}
		}
		return
	}
	s.Errorf("dead letter %d of %s has a body of %d bytes that was not sent", m.Number, m.Name, len(body))
}

// peakMemory returns how much memory the process has had at the most.
func (p *process) peakMemory() int {
	p.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	_, rest, found := strings.Cut(string(text), "VmHWM:")
	if err != nil || !found {
		p.tb.Fatal(errors.Join(err, errors.New("no VmHWM")))
	}
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		p.tb.Fatal(err)
	}
	return kb << 10
}
