package admin

import (
	"context"
	"time"
)

// Schedules is an operator's view of the schedules of a database.
type Schedules interface {
	// Schedules lists the schedules by name, and returns the time by the database's clock.
	Schedules(ctx context.Context) ([]Schedule, time.Time, error)
	// TriggerSchedule requests one message of a schedule outside of its timing, which a
	// process that runs the schedule sends, and returns the time of the request by the
	// database's clock. A pending request is not doubled: its time and false are returned
	// then. The error of an unknown name wraps waybill.ErrNotFound.
	TriggerSchedule(ctx context.Context, name string) (requested time.Time, added bool, err error)
}

// A Schedule is the state of one schedule, which the processes that run it share.
type Schedule struct {
	Name     string     `json:"name"`
	Spec     string     `json:"spec"`      // schedule.Timing, as text
	Missed   string     `json:"missed"`    // schedule.Missed
	LastTick *time.Time `json:"last_tick"` // of the last message that was dispatched
	NextTick time.Time  `json:"next_tick"` // long past if no process runs the schedule
	// RequestedAt is the time of an operator's request that is not sent yet, or nil.
	RequestedAt *time.Time `json:"requested_at"`
	// DoneUntil is the time up to which each tick has been dispatched or skipped.
	DoneUntil time.Time `json:"-"`
}

// overdueAfter is how late a message is before its schedule counts as overdue.
const overdueAfter = 10 * time.Second

// Due returns the time of the next message: the next tick, or an earlier request.
func (s Schedule) Due() time.Time {
	if s.RequestedAt != nil && s.RequestedAt.Before(s.NextTick) {
		return *s.RequestedAt
	}
	return s.NextTick
}

// Overdue returns how late the next message is at a time, or zero within the first ten seconds.
func (s Schedule) Overdue(now time.Time) time.Duration {
	if late := now.Sub(s.Due()); late > overdueAfter {
		return late
	}
	return 0
}
