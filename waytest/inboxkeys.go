package waytest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
)

func idempotencyKeyMakesMessagesDuplicates[TX any](t *testing.T, s *fixture[TX]) {
	h := s.handling()
	h.handle("h", fine[TX])
	first := arrival(t, order{"k", 5})
	for i, key := range []string{"payment-1", "payment-1", "payment-2", "", "", first.ID.String()} {
		rec := arrival(t, order{"k", i})
		if i == 4 {
			rec = first
			rec.Body = []byte(`{"key":"k","seq":4}`)
		}
		if key != "" {
			rec.Headers = map[string]string{waybill.HeaderIdempotencyKey: key}
		}
		if err := h.receive(rec); err != nil {
			t.Error(err)
		}
	}
	// The last one's key looks like the id of another message, and is none.
	h.wantEffects("in the end", "h 0", "h 2", "h 3", "h 4", "h 5")
}

func entriesDifferBytewise[TX any](t *testing.T, s *fixture[TX]) {
	store := s.inbox()
	handlers := []string{"h", "H", "h ", "ħ", "orders/billing", strings.Repeat("h", 190)}
	for round, want := range []bool{true, false} {
		err := store.InTx(t.Context(), func(ctx context.Context, tx TX) error {
			for _, handler := range handlers {
				for _, key := range unlike {
					if handler != "h" && len(key) > 2 || len("k:"+key) > 255 {
						continue
					}
					fresh, err := store.InsertTx(ctx, tx, inbox.Entry{Handler: handler, DedupKey: "k:" + key, MessageID: waybill.MessageID{1}})
					if err != nil {
						return fmt.Errorf("handler %q, key %q: %w", handler, key, err)
					}
					if fresh != want {
						t.Errorf("round %d: Remember of handler %q, key %q = %v, want %v", round, handler, key, fresh, want)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// The longest key that a message can carry.
	long := inbox.Entry{Handler: "h", DedupKey: "k:" + strings.Repeat("ä", 127) + "z", MessageID: waybill.MessageID{1}}
	for _, want := range []bool{true, false} {
		err := store.InTx(t.Context(), func(ctx context.Context, tx TX) error {
			fresh, err := store.InsertTx(ctx, tx, long)
			if err == nil && fresh != want {
				t.Errorf("Remember of an idempotency key of 255 bytes = %v, want %v", fresh, want)
			}
			return err
		})
		if err != nil {
			t.Errorf("an idempotency key of 255 bytes: %v", err)
		}
	}
}

// A key that a column does not take is the error of its message, which will not pass later,
// and none of the transaction's.
func keyThatFitsNoColumnFailsAlone[TX any](t *testing.T, s *fixture[TX]) {
	store := s.inbox()
	for i, key := range []string{"k:" + strings.Repeat("x", 9000), "k:a\x00b", "k:\xff"} {
		e := inbox.Entry{Handler: "h", DedupKey: key, MessageID: waybill.MessageID{1}}
		err := store.InTx(t.Context(), func(ctx context.Context, tx TX) error {
			if _, err := store.InsertTx(ctx, tx, e); !waybill.IsUnrecoverable(err) {
				t.Errorf("InsertTx of key %d = %v, want an unrecoverable error", i, err)
			}
			_, failed, lost := store.RunInSavepoint(ctx, tx, e, func(context.Context) error {
				t.Errorf("key %d: the handler ran", i)
				return nil
			})
			if !waybill.IsUnrecoverable(failed) || lost != nil {
				t.Errorf("RunInSavepoint of key %d = %v, %v, want an unrecoverable error and a transaction that continues", i, failed, lost)
			}
			return s.Insert(ctx, tx, fmt.Sprint("beside ", i))
		})
		if err != nil {
			t.Errorf("the transaction of the message beside key %d = %v", i, err)
		}
		if log, ok := s.Store.(inbox.Log); ok {
			if err := log.Insert(t.Context(), e); !waybill.IsUnrecoverable(err) {
				t.Errorf("Insert of key %d = %v, want an unrecoverable error", i, err)
			}
		}
	}
	s.wantTexts("beside 0", "beside 1", "beside 2")
}
