package schedule

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// A task is the state of a schedule in Run, which alone touches it.
type task struct {
	Schedule
	adopted bool      // its row is that of this build
	running bool      // a transaction is under way, or waits for a slot
	retryAt time.Time // after an error; zero means at once
}

// A result is the end of a transaction of a task.
type result struct {
	of  *task
	err error
}

// Run dispatches the messages of the schedules until ctx ends, and returns nil then. While the
// database cannot be reached, it tries again. Run may be called again when it has returned.
func (s *Scheduler[TX]) Run(ctx context.Context) error {
	if len(s.tasks) == 0 {
		<-ctx.Done()
		return nil
	}
	defer s.stop()
	for {
		pause, err := s.pass(ctx)
		if s.note(ctx, "", err); err != nil {
			pause = afterError
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case r := <-s.ended:
			timer.Stop()
			s.end(ctx, r)
			for range len(s.ended) {
				s.end(ctx, <-s.ended)
			}
		}
	}
}

// stop waits for the transactions that have begun. A task that waited for a slot has no result.
func (s *Scheduler[TX]) stop() {
	s.running.Wait()
	for _, t := range s.tasks {
		t.running = false
	}
	for range len(s.ended) {
		<-s.ended // the rows tell the next Run
	}
	clear(s.state) // the end of ctx is no problem that the next Run could solve
}

// pass starts a transaction of each schedule that is due or has a request, and returns the
// pause until the next one.
func (s *Scheduler[TX]) pass(ctx context.Context) (pause time.Duration, err error) {
	rows, now, err := s.rows(ctx)
	if err != nil {
		return 0, err
	}
	s.starting.Do(func() { s.removeAbandoned(ctx, rows, now) })
	pause = recheck
	for _, t := range s.tasks {
		if t.running {
			continue
		}
		row, transaction := rows[t.Name], s.send
		wait := t.Timing.Next(row.DoneUntil).Sub(now)
		switch {
		case !t.adopted:
			transaction, wait = s.adopt, 0
		case row.Spec != t.Timing.String():
			s.note(ctx, t.Name, errReplaced)
			continue
		case row.RequestedAt != nil:
			wait = 0
		}
		if wait = max(wait, time.Until(t.retryAt)); wait > 0 {
			pause = min(pause, wait)
			continue
		}
		t.running = true
		s.running.Go(func() {
			s.inSlot(ctx, func() { s.ended <- result{t, transaction(ctx, t.Schedule, row, now)} })
		})
	}
	return pause, nil
}

// errReplaced says that another process has changed or removed the row of a schedule.
var errReplaced = errors.New("another build of the program has given the schedule another timing, or its row was removed: this process does not send it until it is restarted")

// inSlot runs fn when fewer than maxTransactions others run, and not once ctx has ended: a stop
// waits for the transactions that have begun.
func (s *Scheduler[TX]) inSlot(ctx context.Context, fn func()) {
	select {
	case <-ctx.Done():
		return
	case s.slots <- struct{}{}:
	}
	defer func() { <-s.slots }()
	if ctx.Err() == nil {
		fn()
	}
}

// end takes the result of a transaction. The next pass reads the row again.
func (s *Scheduler[TX]) end(ctx context.Context, r result) {
	r.of.running = false
	r.of.retryAt = time.Time{}
	if errors.Is(r.err, errTaken) {
		return
	}
	if s.note(ctx, r.of.Name, r.err); r.err != nil {
		r.of.retryAt = time.Now().Add(afterError)
		return
	}
	r.of.adopted = true
}

// adopt gives a schedule its row: a new one, or one with a new timing, ticks from now on. Only
// the start of a process adopts: while an old and a new build run side by side, the last started
// one decides.
func (s *Scheduler[TX]) adopt(ctx context.Context, one Schedule, old admin.Schedule, now time.Time) error {
	adopted := admin.Schedule{Name: one.Name, Spec: one.Timing.String(), Missed: string(one.Missed), LastTick: old.LastTick, DoneUntil: old.DoneUntil, RequestedAt: old.RequestedAt}
	if old.Spec != adopted.Spec && adopted.DoneUntil.Before(now) {
		adopted.DoneUntil = now
	}
	adopted.NextTick = one.Timing.Next(adopted.DoneUntil)
	if old.Spec == adopted.Spec && old.Missed == adopted.Missed && old.NextTick.Equal(adopted.NextTick) {
		return nil
	}
	return s.replace(ctx, old, adopted, nil)
}

// removeAbandoned removes, at the start of a process, the rows of schedules that no process has
// run for long.
func (s *Scheduler[TX]) removeAbandoned(ctx context.Context, rows map[string]admin.Schedule, now time.Time) {
	mine := map[string]bool{}
	for _, t := range s.tasks {
		mine[t.Name] = true
	}
	s.running.Go(func() {
		for name, row := range rows {
			if mine[name] || now.Sub(row.NextTick) < abandoned || ctx.Err() != nil {
				continue
			}
			switch err := s.replace(ctx, row, admin.Schedule{}, nil); {
			case err == nil:
				s.log.LogAttrs(ctx, slog.LevelInfo, "row of a schedule removed: no process has run it for 30 days", slog.String("schedule", name))
			case !errors.Is(err, errTaken):
				s.log.LogAttrs(ctx, slog.LevelWarn, "row of a schedule not removed, the next start will retry: no process has run it for 30 days", slog.String("schedule", name), slog.Any("err", err))
			}
		}
	})
}

// note logs the problem of a schedule, or of all for an empty name, when it changes. An outage
// is one, though each error of it may name another port.
func (s *Scheduler[TX]) note(ctx context.Context, name string, err error) {
	was, problem := s.state[name], ""
	if errors.Is(err, waybill.ErrUnavailable) {
		problem = waybill.ErrUnavailable.Error()
	} else if err != nil {
		problem = err.Error()
	}
	s.state[name] = problem
	var attrs []slog.Attr
	if name != "" {
		attrs = []slog.Attr{slog.String("schedule", name)}
	}
	switch {
	case problem == was || ctx.Err() != nil:
	case err != nil:
		attrs = append(attrs, slog.Any("err", err))
		if panicked := (*waybill.PanicError)(nil); errors.As(err, &panicked) {
			attrs = append(attrs, slog.String("stack", string(panicked.Stack)))
		}
		s.log.LogAttrs(ctx, slog.LevelWarn, "schedule not sent, will retry", attrs...)
	default:
		s.log.LogAttrs(ctx, slog.LevelInfo, "schedule sends again", attrs...)
	}
}
