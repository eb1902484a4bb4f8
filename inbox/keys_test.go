package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/memory"
)

type voided struct{ Invoice string }

func (voided) MessageName() string { return "invoice.voided" }

// Two names may share a handler's name, and their business keys may be equal.
func TestIdempotencyKeyIsThatOfOneMessageName(t *testing.T) {
	p := newFixture(t)
	p.handle("billing", fine)
	inbox.Handle(p.bus, p.db, "billing", func(_ context.Context, tx *memory.Tx, m voided) error {
		tx.OnCommit(func() { p.effects = append(p.effects, "voided "+m.Invoice) })
		return nil
	})
	void, err := p.bus.Serializer().Encode(waybill.NewEnvelope(voided{"i-1"}, p.record("").ID, waybill.IdempotencyKey("i-1")))
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range []*waybill.Record{p.record("i-1", waybill.IdempotencyKey("i-1")), void, void} {
		if err := p.receive(rec); err != nil {
			t.Fatal(err)
		}
	}
	p.wantEffects("billing i-1", "voided i-1")
}

// A database would refuse such a key, and roll the whole group back.
func TestIdempotencyKeyOfAnotherProducerIsChecked(t *testing.T) {
	p := newFixture(t)
	p.handle("billing", fine)
	for key, valid := range map[string]bool{strings.Repeat("k", 255): true, strings.Repeat("k", 256): false, "a\x00b": false, "a\xff": false} {
		rec := p.record("i-1")
		rec.Headers = map[string]string{waybill.HeaderIdempotencyKey: key}
		err := p.receive(rec)
		var limit *waybill.LimitError
		var invalid *waybill.InvalidError
		if refused := errors.As(err, &limit) || errors.As(err, &invalid); refused == valid || refused != waybill.IsUnrecoverable(err) {
			t.Errorf("key %.10q of %d bytes: %v, want valid %v and else an unrecoverable error", key, len(key), err, valid)
		}
	}
}

type voidedV2 struct{ Invoices []string }

func (voidedV2) MessageName() string { return "invoice.voided.v2" }

// A message comes again after a deployment with an upcaster: it has had its effect.
func TestUpcasterKeepsTheInboxRow(t *testing.T) {
	p := newFixture(t)
	inbox.Handle(p.bus, p.db, "billing", func(_ context.Context, tx *memory.Tx, m voided) error {
		tx.OnCommit(func() { p.effects = append(p.effects, "voided "+m.Invoice) })
		return nil
	})
	var recs []*waybill.Record
	for _, stamps := range [][]waybill.Stamp{nil, {waybill.IdempotencyKey("k")}} {
		rec, err := p.bus.Serializer().Encode(waybill.NewEnvelope(voided{"i-1"}, stamps...).With(p.record("").ID))
		if err != nil {
			t.Fatal(err)
		}
		recs = append(recs, rec)
	}
	handle := func() {
		for _, rec := range recs {
			if err := p.receive(rec); err != nil {
				t.Fatal(err)
			}
		}
	}
	handle()
	p.bus = waybill.NewBus("the next build")
	waybill.Upcast(p.bus, func(m voided) (voidedV2, error) { return voidedV2{[]string{m.Invoice}}, nil })
	inbox.Handle(p.bus, p.db, "billing", func(_ context.Context, tx *memory.Tx, m voidedV2) error {
		tx.OnCommit(func() { p.effects = append(p.effects, "voided again "+m.Invoices[0]) })
		return nil
	})
	handle()
	p.wantEffects("voided i-1", "voided i-1")
}
