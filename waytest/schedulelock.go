package waytest

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/outbox"
	scheduling "github.com/waybill-go/waybill/schedule"
)

// A transaction locks the row of a schedule that ticks, of one that a start has to adopt, or an abandoned one.
func lockedRowHoldsUpNoOtherSchedule[TX any](t *testing.T, s *fixture[TX]) {
	db := schedules(t, s.Store)
	if s.OneWriter {
		t.Skip("a transaction locks all rows")
	}
	const name = "locked"
	for what, age := range map[string]time.Duration{"ticking": 0, "adopted": time.Second, "abandoned": 2 * abandonedAge} {
		locked, free := everySecond(t, name, scheduling.Latest), everySecond(t, "free", scheduling.Latest)
		rows, now := scheduleRows(t, db)
		row := rowOf(locked, now.Add(-age))
		run := []scheduling.Schedule{locked, free}
		switch what {
		case "adopted":
			row.Missed = string(scheduling.All)
		case "abandoned":
			run = run[1:]
		}
		s.replaceSchedule(rows[name], row, true, true)
		rows, _ = scheduleRows(t, db)
		moved := rows[name]
		moved.LastTick = new(now)
		tx := s.begin()
		if found, err := db.ReplaceSchedule(t.Context(), tx, rows[name], moved); !found || err != nil {
			t.Fatalf("ReplaceSchedule = %v, %v", found, err)
		}
		_, start := scheduleRows(t, db)
		stop := s.scheduled([]scheduling.Store[TX]{db}, []*outbox.Outbox[TX]{s.outbox(outbox.Config{})}, run...)
		await(t, "another schedule ticks", func() bool {
			rows, now = scheduleRows(t, db)
			return rows["free"].NextTick.Sub(start) > 3*time.Second
		})
		if late := now.Sub(start) - 3*time.Second; late > time.Second {
			t.Errorf("%s: another schedule is %v late: %+v", what, late, rows["free"])
		}
		s.end(tx, false)
		stop()
	}
}

// abandonedAge is the age at which a row without a process is removed.
const abandonedAge = 30 * 24 * time.Hour
