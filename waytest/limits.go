package waytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/outbox"
)

func edgeCases[TX any]() []testCase[TX] {
	return []testCase[TX]{
		{"KeysDifferBytewise", keysDifferBytewise[TX]},
		{"MessageWithoutKeyIsInNoBucket", messageWithoutKeyIsInNoBucket[TX]},
		{"NamesDifferBytewise", namesDifferBytewise[TX]},
		{"WhatNoTableTakesIsRefused", whatNoTableTakesIsRefused[TX]},
		{"UnknownTransportIsRefused", unknownTransportIsRefused[TX]},
		{"IDsOfTheCallersOwnAreKept", idsOfTheCallersOwnAreKept[TX]},
		{"BodiesPassUnchanged", bodiesPassUnchanged[TX]},
		{"RecordsPassUnchanged", recordsPassUnchanged[TX]},
		{"TenThousandMessagesOfOneTransactionKeepTheirOrder", tenThousandMessagesOfOneTransactionKeepTheirOrder[TX]},
	}
}

// unlike are keys of which some database or collation thinks two the same, or
// which some driver would change.
var unlike = []string{
	"a", "A", "a ", " a", "a  ", "ä", "a\u0308", "á", "ß", "ss", "ı", "i", "I", "İ", "a\u200d", "a\u00ad", "😀", "😁", "ключ", "КЛЮЧ", "키", "a\x01", "a\t", "a\n",
	"'", `"`, `\`, `\'`, "%", "_", "NULL", "0", "00", "0.0", "?", "$1", ":a", "@a", "{}", "\ufeffa", "e\u0301", "é",
	strings.Repeat("x", 255), strings.Repeat("x", 254) + "y", strings.Repeat("ä", 127) + "z", strings.Repeat("ä", 127) + "Z", strings.Repeat("😀", 63) + "abc",
}

func keysDifferBytewise[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	const each = 3
	ids := map[waybill.MessageID]string{}
	dispatch := func(ctx context.Context, tx TX) error {
		for seq := range each {
			for _, key := range unlike {
				id, err := out.Dispatch(ctx, tx, order{key, seq})
				if err != nil {
					return fmt.Errorf("key %q: %w", key, err)
				}
				ids[id] = key
			}
		}
		return nil
	}
	for what, inTx := range map[string]func(func(ctx context.Context, tx TX) error) error{
		"a unit of work":       func(fn func(ctx context.Context, tx TX) error) error { return s.Store.InTx(t.Context(), fn) },
		"the caller's own one": s.inOwnTx,
	} {
		clear(ids)
		if err := inTx(dispatch); err != nil {
			t.Fatal(err)
		}
		if s.Bucket != nil {
			for id, key := range ids {
				if got, err := s.Bucket(t.Context(), id); err != nil || got != outbox.Bucket(key, buckets) {
					t.Errorf("%s: key %q is in bucket %d (%v), want %d", what, key, got, err, outbox.Bucket(key, buckets))
				}
			}
		}
		// The first key is blocked, and nothing else.
		ill := true
		sink := &recorder{refuse: func(rec *waybill.Record) error {
			if rec.Key == unlike[0] && ill {
				return errRefused
			}
			return nil
		}}
		retry := waybill.Backoff{Delay: time.Second, Jitter: -1, MaxDelay: time.Second}
		s.drain(sink, outbox.RelayConfig{Retry: retry})
		for key, n := range perKey(t, sink.got) {
			if n != each {
				t.Errorf("%s: key %q: %d messages, want %d", what, key, n, each)
			}
		}
		if want := each * (len(unlike) - 1); len(sink.got) != want {
			t.Errorf("%s: %d messages came, want %d: all but those of one key", what, len(sink.got), want)
		}
		ill = false
		await(t, "the key gets through", func() bool {
			s.drain(sink, outbox.RelayConfig{})
			return len(sink.got) >= each*len(unlike)
		})
		perKey(t, sink.got)
	}
}

func messageWithoutKeyIsInNoBucket[TX any](t *testing.T, s *fixture[TX]) {
	if s.Bucket == nil {
		return // the store has none
	}
	out := s.outbox(outbox.Config{})
	var id waybill.MessageID
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) (err error) {
		id, err = tx.Dispatch(ctx, order{"", 0})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Bucket(t.Context(), id); err != nil || got != -1 {
		t.Errorf("a message without a key is in bucket %d (%v), want -1", got, err)
	}
}

func namesDifferBytewise[TX any](t *testing.T, s *fixture[TX]) {
	transports := []string{"events", "Events", "events ", "évents"}
	out := s.outbox(outbox.Config{To: "events", Transports: transports})
	s.outbox(outbox.Config{To: "events", Transports: transports}) // known already
	for i, to := range transports {
		s.put(out, waybill.NewEnvelope(order{"k", i}, waybill.TransportNames{to}))
	}
	for i, from := range transports {
		if got, want := names(s.take(from)), fmt.Sprint("k", i); got != want {
			t.Errorf("transport %q has %q, want %q", from, got, want)
		}
	}
}

func whatNoTableTakesIsRefused[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	for what, msg := range map[string]any{
		"NUL in a key":              order{"a\x00b", 1},
		"a key that is not UTF-8":   order{"\xff", 1},
		"half a character":          order{"a\xc3", 1},
		"a key of 256 bytes":        order{strings.Repeat("ä", 128), 1},
		"a line break in a header":  waybill.NewEnvelope(order{"k", 1}, waybill.Header("h", "a\nb")),
		"NUL in a header":           waybill.NewEnvelope(order{"k", 1}, waybill.Header("h", "a\x00b")),
		"a header that is no UTF-8": waybill.NewEnvelope(order{"k", 1}, waybill.Header("h", "\xff")),
		"a name of 191 bytes":       waybill.NewEnvelope(waybill.RawMessage{Name: strings.Repeat("n", 191), Body: []byte("{}")}),
		"a body above the limit":    waybill.RawMessage{Name: "big", ContentType: "application/octet-stream", Body: make([]byte, 1<<20+1)},
		"an unknown name":           waybill.RawMessage{Name: "nobody.knows", Body: []byte("{}")},
	} {
		err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
			if _, err := tx.Dispatch(ctx, msg); err == nil {
				t.Errorf("%s was accepted", what)
			}
			_, err := tx.Dispatch(ctx, order{"good", 0})
			return err // the refusal happened before anything was written
		})
		if err != nil {
			t.Errorf("%s: the unit of work went on and failed: %v", what, err)
		}
		if got := names(s.take(outbox.DefaultTransport)); got != "good0" {
			t.Errorf("%s: the outbox has %q, want the good one", what, got)
		}
	}
}

// The outbox refuses names that it does not know; a direct Write to the store must
// not lose a message either.
func unknownTransportIsRefused[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	if err := send(t.Context(), out, waybill.NewEnvelope(order{"k", 0}, waybill.TransportNames{"nowhere"})); err == nil {
		t.Error("Dispatch to an unknown transport = nil")
	}
	rec := &waybill.Record{ID: newID(t), Name: "order.placed", Key: "k", Body: []byte(`{"key":"k","seq":1}`), DispatchedAt: time.Now()}
	for what, inTx := range map[string]func(func(ctx context.Context, tx TX) error) error{
		"a unit of work":       func(fn func(ctx context.Context, tx TX) error) error { return s.Store.InTx(t.Context(), fn) },
		"the caller's own one": s.inOwnTx,
	} {
		err := inTx(func(ctx context.Context, tx TX) error {
			return s.Store.Write(ctx, tx, outbox.Row{Record: rec, Transport: outbox.DefaultTransport}, outbox.Row{Record: rec, Transport: "nowhere"})
		})
		if err == nil || errors.Is(err, waybill.ErrCommitUnknown) || errors.Is(err, waybill.ErrUnavailable) {
			t.Errorf("%s: Write to an unknown transport = %v, want a refusal", what, err)
		}
		s.wantWaiting("after " + what)
	}
	if rows := s.peek("nowhere"); len(rows) != 0 {
		t.Errorf("an unknown transport has %d rows", len(rows))
	}
	if left, err := s.Store.Backlog(t.Context(), "nowhere"); err != nil || left != (outbox.Backlog{}) {
		t.Errorf("Backlog of an unknown transport = %+v, %v", left, err)
	}
}

func newID(t testing.TB) waybill.MessageID {
	t.Helper()
	id, err := waybill.NewMessageID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func idsOfTheCallersOwnAreKept[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	var want []waybill.MessageID
	var msgs []any
	for i, text := range []string{
		"01890a5d-ac96-774b-bcce-b302099a8057", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "00000000-0000-0000-0000-000000000001",
		"f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "00000000000000000000000027", "27272727-2727-2727-2727-27272727005c", "0a0d1a00-0000-4000-8000-00ff00000020",
	} {
		id, err := waybill.ParseMessageID(text)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
		msgs = append(msgs, waybill.NewEnvelope(order{"k", i}, id))
	}
	s.put(out, msgs...)
	s.put(out, waybill.NewEnvelope(order{"k", len(want)}, want[0])) // an id may come again: it is the caller's word
	want = append(want, want[0])
	var got []waybill.MessageID
	for _, row := range s.peek(outbox.DefaultTransport) {
		got = append(got, row.Record.ID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ids (-want +got):\n%s", diff)
	}
}

func bodiesPassUnchanged[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	bodies := [][]byte{
		bytes.Repeat([]byte{0, 1, 0xff, '\''}, 1<<18), // 1 MiB
		nil, {}, {0}, every, bytes.Repeat(every, 300), []byte("'; DROP TABLE x; --"), []byte(`\x00`), []byte(" leading and trailing "), {0xc3}, {0xef, 0xbb, 0xbf}, []byte("\r\n"),
	}
	dispatch := func(ctx context.Context, tx TX) error {
		for _, b := range bodies {
			if _, err := out.Dispatch(ctx, tx, waybill.RawMessage{Name: "big", Key: "k", ContentType: "application/octet-stream", Body: b}); err != nil {
				return err
			}
		}
		return nil
	}
	for what, inTx := range map[string]func(func(ctx context.Context, tx TX) error) error{
		"a unit of work":       func(fn func(ctx context.Context, tx TX) error) error { return s.Store.InTx(t.Context(), fn) },
		"the caller's own one": s.inOwnTx,
	} {
		if err := inTx(dispatch); err != nil {
			t.Fatal(err)
		}
		rows := s.take(outbox.DefaultTransport)
		if len(rows) != len(bodies) {
			t.Fatalf("%s: %d rows, want %d", what, len(rows), len(bodies))
		}
		for i, row := range rows {
			if !bytes.Equal(row.Record.Body, bodies[i]) || row.Record.ContentType != "application/octet-stream" || row.Record.Problem != nil {
				t.Errorf("%s, body %d: %d bytes of %s came back (%v), want %d", what, i, len(row.Record.Body), row.Record.ContentType, row.Record.Problem, len(bodies[i]))
			}
		}
	}
}

// values are header values that a table must not change. The outbox refuses
// line breaks, which no broker would take; other programs may write them.
var values = map[string]string{
	"quotes": `acme "ü" 'x' \ \\ \" \u0041`, "unicode": "ключ 😀 e\u0301 \u2028 \ufeff", "tab": "a\tb", "empty": "", "space": " a ", "lines": "a\nb\r\nc",
	"json": `{"a": [1, null]}`, "percent": "%s %d ? $1 :a", "number": "007", "true": "true", "UPPER": "UPPER", "x-" + strings.Repeat("n", 200): strings.Repeat("ä", 5000),
}

func recordsPassUnchanged[TX any](t *testing.T, s *fixture[TX]) {
	s.outbox(outbox.Config{})
	var want []*waybill.Record
	var rows []outbox.Row
	for i, at := range []time.Time{time.Now().UTC(), time.Date(2026, 3, 29, 2, 30, 0, 999_999_000, time.UTC), time.Date(2026, 10, 25, 0, 30, 0, 1000, time.UTC)} {
		rec := &waybill.Record{
			ID: newID(t), Name: strings.Repeat("n.", 95), Key: "ключ-ä", ContentType: "text/x; charset=\"ü\"", Headers: map[string]string{},
			Body: fmt.Append(nil, i), DispatchedAt: at,
		}
		if i > 0 { // one message has no headers
			for name, value := range values {
				rec.Headers[name] = value
			}
			for _, name := range []string{waybill.HeaderCorrelationID, waybill.HeaderCausationID, waybill.HeaderIdempotencyKey, waybill.HeaderHandledBy} {
				rec.Headers[name] = name + " ü"
			}
		}
		want = append(want, rec)
		rows = append(rows, outbox.Row{Record: rec, Transport: outbox.DefaultTransport})
	}
	err := s.Store.InTx(t.Context(), func(ctx context.Context, tx TX) error { return s.Store.Write(ctx, tx, rows...) })
	if err != nil {
		t.Fatal(err)
	}
	got := s.take(outbox.DefaultTransport)
	if len(got) != len(want) {
		t.Fatalf("%d rows, want %d", len(got), len(want))
	}
	for i := range got {
		wantSame(t, fmt.Sprint("row ", i), want[i], got[i].Record)
	}
}

// wantSame compares a record with the one read back. Tables keep microseconds.
func wantSame(t testing.TB, what string, want, got *waybill.Record) {
	t.Helper()
	a, b := *want, *got
	if off := a.DispatchedAt.Sub(b.DispatchedAt); off < -time.Microsecond || off > time.Microsecond || b.DispatchedAt.Location() != time.UTC {
		t.Errorf("%s: dispatched at %v, want %v in UTC", what, b.DispatchedAt, a.DispatchedAt)
	}
	if !bytes.Equal(a.Body, b.Body) {
		t.Errorf("%s: another body came back, of %d bytes, want %d", what, len(b.Body), len(a.Body))
	}
	a.Body, b.Body = nil, nil // a diff of large ones takes long
	a.DispatchedAt, b.DispatchedAt = time.Time{}, time.Time{}
	if len(a.Headers) == 0 && len(b.Headers) == 0 {
		a.Headers, b.Headers = nil, nil
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func tenThousandMessagesOfOneTransactionKeepTheirOrder[TX any](t *testing.T, s *fixture[TX]) {
	out := s.outbox(outbox.Config{})
	messages := 10_000
	if testing.Short() {
		messages = 1000
	}
	const keys = 100
	err := out.InTx(t.Context(), func(ctx context.Context, tx outbox.Tx[TX]) error {
		for i := range messages {
			if _, err := tx.Dispatch(ctx, order{fmt.Sprint("k", i%keys), i / keys}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wantBacklog("after the commit", outbox.Backlog{Pending: messages})
	var got []order
	for _, row := range s.take(outbox.DefaultTransport) {
		got = append(got, bodyOf(row.Record))
	}
	if perKey(t, got); len(got) != messages {
		t.Errorf("%d messages came, want %d", len(got), messages)
	}
	s.wantBacklog("afterwards", outbox.Backlog{})
}
