package memory

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
)

// Sync returns the transport sync://: Send runs the handlers of bus and returns
// their error. Nothing is retried, and a delayed message is refused. It panics on a nil bus.
func Sync(bus *waybill.Bus) waybill.Sender {
	if bus == nil {
		panic(errors.New("memory: Sync needs a bus"))
	}
	return syncSender{bus}
}

type syncSender struct{ bus *waybill.Bus }

func (s syncSender) Send(ctx context.Context, rec *waybill.Record) error {
	if rec.Delay > 0 {
		return fmt.Errorf("sync transport: %s is delayed by %v, and what is handled at once cannot wait", rec.Name, rec.Delay)
	}
	ctx = waybill.WithHandlerWatch(ctx, waybill.HandlerWatch{}) // that of a worker watches the message around
	return s.bus.HandleRecord(ctx, clone(rec), "sync", 0)
}
