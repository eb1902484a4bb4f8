package history_test

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/history"
)

// kept is a Store for the example: programs have that of waypg, waymysql or waysqlite.
type kept []history.Row

func (k *kept) AddHistory(_ context.Context, rows []history.Row) error {
	*k = append(*k, rows...)
	return nil
}

func (k *kept) History(context.Context, history.Query) ([]history.Row, error) { return *k, nil }

func Example() {
	store := &kept{}
	recorder, err := history.New(store, history.Config{})
	if err != nil {
		panic(err)
	}
	// An outbox, relay or worker calls its Observer.
	recorder.Observe(context.Background(), waybill.Event{Kind: waybill.Handled, Transport: "orders", Name: "order.placed", Age: 30 * time.Millisecond})

	stopped, stop := context.WithCancel(context.Background())
	stop()
	_ = recorder.Run(stopped) // until its context ends, and then it writes the rest
	rows, _ := store.History(context.Background(), history.Query{})
	for _, row := range rows {
		if row.Message != "" {
			fmt.Println(row.Transport, row.Message, row.Handled, row.Critical.Quantile(0.5))
		}
	}
	// Output: orders order.placed 1 35ms
}
