package admin

import (
	"context"
	"time"
)

// Schedules is an operator's view of the schedules of a database.
type Schedules interface {
	// Schedules lists the schedules by name, and returns the time by the database's clock.
	Schedules(ctx context.Context) ([]Schedule, time.Time, error)
}

// A Schedule is the state of one schedule, which the processes that run it share.
type Schedule struct {
	Name     string     `json:"name"`
	Spec     string     `json:"spec"`      // schedule.Timing, as text
	Missed   string     `json:"missed"`    // schedule.Missed
	LastTick *time.Time `json:"last_tick"` // of the last message that was dispatched
	NextTick time.Time  `json:"next_tick"` // long past if no process runs the schedule
	// DoneUntil is the time up to which each tick has been dispatched or skipped.
	DoneUntil time.Time `json:"-"`
}

// overdueAfter is how late a tick is before its schedule counts as overdue.
const overdueAfter = 10 * time.Second

// Overdue returns how late the next tick is at a time, or zero within the first ten seconds.
func (s Schedule) Overdue(now time.Time) time.Duration {
	if late := now.Sub(s.NextTick); late > overdueAfter {
		return late
	}
	return 0
}
