package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
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
	// called again for the same tick, and while the Message of another schedule runs. The tick
	// of a request is the second in which it was made.
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
	db       Store[TX]
	out      *outbox.Outbox[TX]
	log      *slog.Logger
	tasks    []*task
	state    map[string]string // last logged problem by schedule; only touched by Run
	slots    chan struct{}     // of transactions
	ended    chan result
	running  sync.WaitGroup
	starting sync.Once // of the removal of abandoned rows
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
	// maxTransactions is how many schedules send at once. One that waits for a lock holds up no
	// other, and if the whole table is locked, the program keeps most of its connections.
	maxTransactions = 2
	// abandoned is how long the next tick of a schedule that no process runs is overdue
	// before its row is removed.
	abandoned = 30 * 24 * time.Hour
)

// New returns a scheduler on a database and its outbox.
func New[TX any](db Store[TX], out *outbox.Outbox[TX], cfg Config, schedules ...Schedule) (*Scheduler[TX], error) {
	if any(db) == nil || out == nil {
		return nil, errors.New("schedule: New needs a database and an outbox")
	}
	s := &Scheduler[TX]{db: db, out: out, log: cfg.Log, state: map[string]string{}, slots: make(chan struct{}, maxTransactions)}
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
		s.tasks = append(s.tasks, &task{Schedule: one})
	}
	s.ended = make(chan result, len(s.tasks)) // a transaction does not wait for Run
	return s, nil
}

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
	if failed == nil || errors.Is(failed, errTaken) { // and the row is another one
		return failed
	}
	return cmp.Or(s.sendTicks(ctx, one, row, now), failed)
}

// message returns the message of a tick, without an id.
func (s Schedule) message(tick time.Time) *waybill.Envelope {
	return waybill.NewEnvelope(s.Message(tick)).With(waybill.Header(NameHeader, s.Name), waybill.Header(TickHeader, tick.Format(time.RFC3339)))
}

// sendTicks dispatches the due ticks of one schedule and moves its row past them, in one
// transaction. It fails with errTaken if another process has changed the row meanwhile.
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
	if err != nil {
		return err
	}
	if !p.lost.IsZero() {
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
