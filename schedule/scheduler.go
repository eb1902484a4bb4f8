package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gofrs/uuid/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/outbox"
)

// A Store keeps schedules in a database, with transactions of type TX. Its methods may be
// called concurrently.
type Store[TX any] interface {
	admin.Schedules
	// ReplaceSchedule replaces the row of a schedule as part of tx, and reports whether it
	// was found: the row must have the name, Spec, DoneUntil and RequestedAt of old. A zero old adds the
	// row, unless there is one of that name. A zero replacement removes it.
	ReplaceSchedule(ctx context.Context, tx TX, old, replacement admin.Schedule) (bool, error)
}

// A Schedule dispatches a message at each of its ticks, and at the request of an operator.
type Schedule struct {
	// Name identifies the schedule among all whose messages reach one consumer, in at most 190
	// bytes of UTF-8 without control characters. Another name is another schedule.
	Name   string
	Timing Timing
	// Missed is the policy for missed ticks. Empty means Latest.
	Missed Missed
	// Message returns the message of a tick: a struct or an *waybill.Envelope. It may be
	// called again for the same tick. The tick of a request is the second in which it was
	// made.
	Message func(tick time.Time) any
}

// The headers of the messages of schedules.
const (
	NameHeader = "schedule"     // the name of the schedule
	TickHeader = "scheduled-at" // the tick, in the form of time.RFC3339, in UTC
)

// namespace is that of the ids of the messages.
var namespace = uuid.UUID{0xe2, 0x5b, 0x1f, 0x5c, 0x3d, 0x0a, 0x4b, 0x6e, 0x9c, 0x1d, 0x74, 0x6a, 0x2f, 0x90, 0x8e, 0x37}

// MessageID returns the id of the message of a tick, a UUIDv5 of the name and the tick: it is
// the same in every database.
func MessageID(name string, tick time.Time) waybill.MessageID {
	return waybill.MessageID(uuid.NewV5(namespace, name+"\x00"+tick.UTC().Format(time.RFC3339)))
}

// Config tunes a Scheduler.
type Config struct {
	// Log is the log. Nil discards it.
	Log *slog.Logger
}

// A Scheduler runs schedules. Other processes may run the same ones.
type Scheduler[TX any] struct {
	db        Store[TX]
	out       *outbox.Outbox[TX]
	log       *slog.Logger
	schedules []Schedule
	state     map[string]string // last logged problem by schedule; only touched by Run
}

const (
	maxName = 190
	// recheck is the longest pause between two readings of the rows: an operator may have
	// requested a message, or a clock may have been changed meanwhile.
	recheck = 5 * time.Second
	// afterError is the pause after an error.
	afterError = time.Second
	// sendTimeout is the time of one transaction.
	sendTimeout = 10 * time.Second
	// abandoned is how long the next tick of a schedule that no process runs is overdue
	// before its row is removed.
	abandoned = 30 * 24 * time.Hour
)

// New returns a scheduler on a database and its outbox.
func New[TX any](db Store[TX], out *outbox.Outbox[TX], cfg Config, schedules ...Schedule) (*Scheduler[TX], error) {
	if any(db) == nil || out == nil {
		return nil, errors.New("schedule: New needs a database and an outbox")
	}
	s := &Scheduler[TX]{db: db, out: out, log: cfg.Log, state: map[string]string{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	names := map[string]bool{}
	for _, one := range schedules {
		switch {
		case one.Name == "" || len(one.Name) > maxName:
			return nil, fmt.Errorf("schedule: the name %q has %d bytes, want 1 to %d", one.Name, len(one.Name), maxName)
		case !utf8.ValidString(one.Name) || strings.ContainsFunc(one.Name, unicode.IsControl):
			return nil, fmt.Errorf("schedule: the name %q has a control character or is not UTF-8: write letters, digits and - . _", one.Name)
		case names[one.Name]:
			return nil, fmt.Errorf("schedule: two schedules are named %q", one.Name)
		case one.Timing == Timing{} || one.Message == nil:
			return nil, fmt.Errorf("schedule: %q needs a Timing and a Message", one.Name)
		case one.Missed == "":
			one.Missed = Latest
		case one.Missed != Latest && one.Missed != Skip && one.Missed != All:
			return nil, fmt.Errorf("schedule: %q: the policy %q is none of latest, skip and all", one.Name, one.Missed)
		}
		names[one.Name] = true
		s.schedules = append(s.schedules, one)
	}
	return s, nil
}

// Run dispatches the messages of the schedules until ctx ends, and returns nil then. While the
// database cannot be reached, it tries again. A scheduler is run once.
func (s *Scheduler[TX]) Run(ctx context.Context) error {
	if len(s.schedules) == 0 {
		<-ctx.Done()
		return nil
	}
	adopted := false
	for {
		pause, err := time.Duration(0), error(nil)
		if !adopted {
			err = s.adopt(ctx)
			adopted = err == nil
		} else {
			pause, err = s.pass(ctx)
		}
		if s.note(ctx, "", err); err != nil {
			pause = afterError
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// pass sends the due ticks and the requests of all schedules, and returns the pause until the
// next one.
func (s *Scheduler[TX]) pass(ctx context.Context) (pause time.Duration, err error) {
	rows, now, err := s.rows(ctx)
	if err != nil {
		return 0, err
	}
	pause = recheck
	for _, one := range s.schedules {
		if ctx.Err() != nil { // each transaction may take its time
			return 0, ctx.Err()
		}
		row, ok := rows[one.Name]
		if !ok || row.Spec != one.Timing.String() {
			s.note(ctx, one.Name, errReplaced)
			continue
		}
		wait := one.Timing.Next(row.DoneUntil).Sub(now)
		if wait <= 0 || row.RequestedAt != nil {
			wait = 0 // the row is read again
			err := s.send(ctx, one, row, now)
			if s.note(ctx, one.Name, err); err != nil {
				wait = afterError
			}
		}
		pause = min(pause, wait)
	}
	return pause, nil
}

// errReplaced says that another process has changed or removed the row of a schedule.
var errReplaced = errors.New("another build of the program has given the schedule another timing, or its row was removed: this process does not send it until it is restarted")

// rows reads the state of all schedules, and the time by the database's clock.
func (s *Scheduler[TX]) rows(ctx context.Context) (map[string]admin.Schedule, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	all, now, err := s.db.Schedules(ctx)
	rows := make(map[string]admin.Schedule, len(all))
	for _, row := range all {
		rows[row.Name] = row
	}
	return rows, now, err
}

// errTaken rolls back when another process has moved the row.
var errTaken = errors.New("another process was first")

// send sends the request of one schedule, if there is one, or its due ticks. A request that
// fails holds up no tick.
func (s *Scheduler[TX]) send(ctx context.Context, one Schedule, row admin.Schedule, now time.Time) error {
	if row.RequestedAt == nil {
		return s.sendTicks(ctx, one, row, now)
	}
	failed := s.sendRequest(ctx, one, row)
	if failed == nil { // and the row is another one
		return nil
	}
	return cmp.Or(s.sendTicks(ctx, one, row, now), failed)
}

// message returns the message of a tick, without an id.
func (s Schedule) message(tick time.Time) *waybill.Envelope {
	return waybill.NewEnvelope(s.Message(tick)).With(waybill.Header(NameHeader, s.Name), waybill.Header(TickHeader, tick.Format(time.RFC3339)))
}

// sendTicks dispatches the due ticks of one schedule and moves its row past them, in one
// transaction. It sends nothing if another process has changed the row meanwhile.
func (s *Scheduler[TX]) sendTicks(ctx context.Context, one Schedule, row admin.Schedule, now time.Time) error {
	p := one.Missed.next(one.Timing, row.DoneUntil, now)
	if p.until.IsZero() {
		return nil
	}
	next := row
	next.Missed, next.DoneUntil, next.NextTick = string(one.Missed), p.until, one.Timing.Next(p.until)
	if n := len(p.ticks); n > 0 {
		next.LastTick = &p.ticks[n-1]
	}
	err := s.replace(ctx, row, next, func(ctx context.Context, tx TX) error {
		messages := make([]any, len(p.ticks))
		for i, tick := range p.ticks {
			messages[i] = one.message(tick).With(MessageID(one.Name, tick))
		}
		_, err := s.out.DispatchAll(ctx, tx, messages...)
		return err
	})
	switch {
	case errors.Is(err, errTaken):
		return nil
	case err != nil:
		return err
	case !p.lost.IsZero():
		s.log.LogAttrs(ctx, slog.LevelWarn, "missed ticks are not sent", slog.String("schedule", one.Name), slog.Time("from", p.lost), slog.String("missed", string(one.Missed)), slog.Int("sent", len(p.ticks)))
	}
	s.log.LogAttrs(ctx, slog.LevelDebug, "ticks sent", slog.String("schedule", one.Name), slog.Int("sent", len(p.ticks)), slog.Time("until", p.until))
	return nil
}

// replace replaces a row and runs more, which may be nil, in one transaction. It fails with
// errTaken if the row is not as it was, and with a *waybill.PanicError if more panics, so that one
// schedule does not end those of all. The end of ctx does not cut the transaction off.
func (s *Scheduler[TX]) replace(ctx context.Context, old, replacement admin.Schedule, more func(ctx context.Context, tx TX) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTimeout)
	defer cancel()
	return s.out.InTx(ctx, func(ctx context.Context, tx outbox.Tx[TX]) error {
		found, err := s.db.ReplaceSchedule(ctx, tx.SQL(), old, replacement)
		switch {
		case err != nil:
			return fmt.Errorf("schedule: %w", err)
		case !found:
			return errTaken
		case more == nil:
			return nil
		}
		return waybill.Guard(func() error { return more(ctx, tx.SQL()) })
	})
}

// adopt gives each schedule its row: a new one, or one with a new timing, ticks from now on.
// It removes the rows of schedules that no process has run for long. Only the start of a
// process adopts: while an old and a new build run side by side, the last started one decides.
func (s *Scheduler[TX]) adopt(ctx context.Context) error {
	for again := true; again; {
		rows, now, err := s.rows(ctx)
		if err != nil {
			return err
		}
		again = false
		for _, one := range s.schedules {
			old := rows[one.Name]
			delete(rows, one.Name)
			adopted := admin.Schedule{Name: one.Name, Spec: one.Timing.String(), Missed: string(one.Missed), LastTick: old.LastTick, DoneUntil: old.DoneUntil, RequestedAt: old.RequestedAt}
			if old.Spec != adopted.Spec && adopted.DoneUntil.Before(now) {
				adopted.DoneUntil = now
			}
			adopted.NextTick = one.Timing.Next(adopted.DoneUntil)
			if old.Spec == adopted.Spec && old.Missed == adopted.Missed && old.NextTick.Equal(adopted.NextTick) {
				continue
			}
			err := s.replace(ctx, old, adopted, nil)
			if again = again || errors.Is(err, errTaken); err != nil && !errors.Is(err, errTaken) {
				return err
			}
		}
		for _, row := range rows {
			if now.Sub(row.NextTick) < abandoned {
				continue
			}
			switch err := s.replace(ctx, row, admin.Schedule{}, nil); {
			case err == nil:
				s.log.LogAttrs(ctx, slog.LevelInfo, "row of a schedule removed: no process has run it for 30 days", slog.String("schedule", row.Name))
			case !errors.Is(err, errTaken):
				return err
			}
		}
	}
	return nil
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
		attrs := append(attrs, slog.Any("err", err))
		if panicked := (*waybill.PanicError)(nil); errors.As(err, &panicked) {
			attrs = append(attrs, slog.String("stack", string(panicked.Stack)))
		}
		s.log.LogAttrs(ctx, slog.LevelWarn, "schedule not sent, will retry", attrs...)
	default:
		s.log.LogAttrs(ctx, slog.LevelInfo, "schedule sends again", attrs...)
	}
}
