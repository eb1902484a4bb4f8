package docs_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/schedule"
)

type SendReport struct {
	Day string `json:"day"`
}

func (SendReport) MessageName() string { return "report.send" }

func Example_schedule() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, remove := openShop(ctx)
	defer remove()
	go func() { // until the schedule has its row
		for rows, _, _ := db.Schedules(ctx); len(rows) == 0 && ctx.Err() == nil; rows, _, _ = db.Schedules(ctx) {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	log := slog.New(slog.DiscardHandler)
	out, err := outbox.New(db, outbox.Config{})
	check(err)

	weekdays, err := schedule.Cron("30 2 * * 1-5", "Europe/Berlin")
	check(err)
	s, err := schedule.New(db, out, schedule.Config{Log: log}, schedule.Schedule{
		Name:    "nightly",
		Timing:  weekdays,
		Missed:  schedule.All,
		Message: func(tick time.Time) any { return SendReport{Day: tick.Format(time.DateOnly)} },
	})
	check(err)
	err = s.Run(ctx) // blocks, and returns nil when ctx ends

	rows, now, listing := db.Schedules(context.Background())
	check(listing)
	fmt.Println(err, rows[0].Name, rows[0].Spec, rows[0].NextTick.Equal(weekdays.Next(now)))
	// Output: <nil> nightly 30 2 * * 1-5 Europe/Berlin true
}

// The session of the page prints its table.
func TestScheduleSessionOfThePageWorks(t *testing.T) {
	only := func(language string) string {
		blocks := pages(t, language)["schedules.md"]
		if len(blocks) != 1 {
			t.Fatalf("the page has %d blocks of %s, want 1", len(blocks), language)
		}
		return blocks[0]
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "waybill.yaml"), []byte(only("yaml")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "waybill"), "../cmd/waybill").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	session := exec.Command("sh", "-ec", only("sh"))
	session.Dir = dir
	var talk strings.Builder
	session.Stderr = &talk
	got, err := session.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, got, &talk)
	}
	text, err := os.ReadFile("schedules.md")
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(string(text), "```\n```\n")
	want, _, _ = strings.Cut(want, "```")
	// A schedule may have ticked already, which sets its last tick and widens the column.
	ticks := regexp.MustCompile(`20..-..-..T..:..:..Z| - `)
	columns := func(table string) []string { return strings.Fields(ticks.ReplaceAllString(table, " T ")) }
	printed := string(got[max(0, strings.Index(string(got), "NAME")):])
	if !slices.Equal(columns(printed), columns(want)) {
		t.Errorf("the session prints\n%s\nthe page has\n%s", got, want)
	}
}
