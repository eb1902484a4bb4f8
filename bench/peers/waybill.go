package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/wayamqp"
	"github.com/waybill-go/waybill/waypg"
)

// waybill is the relay of this repository, with its default settings.
type waybill struct {
	db     *database
	broker *broker
	keys   int
	store  *waypg.DB
	out    *outbox.Outbox[pgx.Tx]
}

// waybillWorkers is what outbox.RelayConfig calls the default.
const waybillWorkers = 2

func newWaybill(ctx context.Context, db *database, b *broker, keys int) (*waybill, error) {
	w := &waybill{db: db, broker: b, keys: keys}
	var err error
	if w.store, err = waypg.New(db.pool, waypg.Config{Schema: db.schema}); err != nil {
		return nil, err
	}
	if _, err := w.store.SchemaUp(ctx); err != nil {
		return nil, err
	}
	w.out, err = outbox.New(w.store, outbox.Config{})
	return w, err
}

func (w *waybill) name() string { return "waybill" }

func (w *waybill) load(ctx context.Context, n int) error {
	if err := w.db.exec(ctx, "TRUNCATE waybill_outbox"); err != nil {
		return err
	}
	err := batches(n, w.keys, loadBatch, func(ms []placed) error {
		return w.out.InTx(ctx, func(ctx context.Context, tx waypg.Tx) error {
			for _, m := range ms {
				if _, err := tx.Dispatch(ctx, m); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	return w.db.exec(ctx, "VACUUM ANALYZE waybill_outbox")
}

func (w *waybill) relay(ctx context.Context, _ int) (_ time.Duration, err error) {
	pub, err := wayamqp.NewPublisher(wayamqp.Config{URL: w.broker.url, Exchange: w.broker.name})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	if err := pub.Connect(ctx); err != nil {
		return 0, err
	}
	relay, err := outbox.NewRelay(w.store, pub, outbox.RelayConfig{Workers: waybillWorkers, Drain: true})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	err = relay.Run(ctx)
	took := time.Since(start)
	if err != nil {
		return 0, err
	}
	return took, ctx.Err() // Run returns nil when it was interrupted
}
