package schedule_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/schedule"
	"github.com/waybill-go/waybill/waysqlite"
)

// Clocks in Berlin skip the hour from 2 to 3 on 29 March.
func ExampleTiming_Next() {
	timing, err := schedule.Cron("30 2 * * *", "Europe/Berlin")
	if err != nil {
		panic(err)
	}
	tick := time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC)
	for range 3 {
		tick = timing.Next(tick)
		fmt.Println(tick.Format(time.RFC3339))
	}
	// Output:
	// 2026-03-28T01:30:00Z
	// 2026-03-29T01:00:00Z
	// 2026-03-30T00:30:00Z
}

type SendReport struct {
	Until time.Time `json:"until"`
}

func (SendReport) MessageName() string { return "report.send" }

// Any number of processes may run the same schedule.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	check(err)
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	db, err := waysqlite.Open(ctx, filepath.Join(dir, "shop.db"), waysqlite.Config{})
	check(err)
	defer db.Close()
	_, err = db.SchemaUp(ctx)
	check(err)
	out, err := outbox.New(db, outbox.Config{Queues: map[string]string{outbox.DefaultTransport: "reports"}})
	check(err)

	often, err := schedule.Every(time.Second)
	check(err)
	s, err := schedule.New(db, out, schedule.Config{}, schedule.Schedule{
		Name: "reports", Timing: often,
		Message: func(tick time.Time) any { return SendReport{tick} },
	})
	check(err)
	ran := make(chan error)
	go func() { ran <- s.Run(ctx) }()

	queue, err := db.Queue("reports", waysqlite.QueueConfig{})
	check(err)
	received, err := queue.Receive(ctx, 1)
	check(err)
	message := received[0].Record
	fmt.Println(message.Name, string(message.Body) == `{"until":"`+message.Headers[schedule.TickHeader]+`"}`)
	cancel()
	fmt.Println(<-ran)
	// Output:
	// report.send true
	// <nil>
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
