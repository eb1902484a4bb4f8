package demo

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/wayamqp"
)

// Messages that the demo's consumer has not received count as on their way, also on
// a queue with a single active consumer, which refuses basic.get.
func TestRestOfTheQueueIsTaken(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	address := testserver.RabbitMQ(t)
	made, err := openRabbit(ctx, config.MustParseDSN(address))
	if err != nil {
		t.Fatal(err)
	}
	b := made.(*rabbit)
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	single := wayamqp.Config{URL: address, Queue: b.name, SingleActiveConsumer: true}
	if err := wayamqp.Check(ctx, single); err != nil {
		t.Errorf("the demo's queue: %v", err)
	}
	p, err := wayamqp.NewPublisher(wayamqp.Config{URL: address, Exchange: b.name})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	var want []waybill.MessageID
	for range 3 {
		id, err := waybill.NewMessageID()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Send(ctx, &waybill.Record{ID: id, Name: "order.placed", Body: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
	}
	for _, want := range [][]waybill.MessageID{want, nil} {
		if got, err := b.rest(ctx); err != nil || !slices.Equal(got, want) {
			t.Errorf("rest = %v, %v, want %v", got, err, want)
		}
	}
}

func TestDemosOfOneMillisecondShareNothing(t *testing.T) {
	now := time.Now()
	if one, two := demoName(now), demoName(now); one == two {
		t.Errorf("both are called %s", one)
	}
}
