package waycli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
)

// retryFlags are the flags of failed retry, besides its filter.
type retryFlags struct {
	dryRun, asNew bool
	rate          rate
	stopAfter     int
}

func (c *cli) failedRetryCommand() *cobra.Command {
	var filter failedFilter
	var f retryFlags
	cmd := &cobra.Command{
		Use:   "retry [NUMBER...]",
		Short: "Dispatch dead letters again",
		Long: `Dispatch dead letters again, under the ids that they have: after their cause
has been mended. Those of relays go to the outbox, those of workers to the retry
queue of their transport, behind what waits of their keys. A worker's entry stays
until the message is handled, and is the same one if it fails again.

Without numbers it takes all that the filters select, or --all: it counts first and
asks; --yes does not ask, and without a terminal it is needed. --dry-run counts by
the same query.

--rate 50/s (or /m, /h) limits it. With --stop-after-failures N it stops by itself
when N of the messages that it has dispatched have failed again, in one attempt or
more. An interrupt and such a stop leave each message either dispatched or a dead
letter, and say how to go on.

--as-new sends each under a new id, with the old one as its causation id: every
handler runs again, also those that have handled the old id.
` + filterHelp + `

Exit code 3 says that there are none, 4 that a message cannot be retried, 5 that it
stopped before the end.

With --json: {"matching", "retried", "failed_again", "dry_run"}.`,
		Example: `  waybill failed retry 17 18
  waybill failed retry --fingerprint 5d41402abc4b2a76 --dry-run
  waybill failed retry --name invoice.send --rate 50/s --stop-after-failures 5`,
		RunE: c.run(func(ctx context.Context, s *session, args []string) error {
			return s.failedRetry(ctx, filter, args, f)
		}),
	}
	c.failedFlags(cmd, &filter)
	p := cmd.Flags()
	p.BoolVar(&filter.All, "all", false, "all dead letters")
	p.BoolVar(&f.dryRun, "dry-run", false, "only count")
	p.BoolVar(&f.asNew, "as-new", false, "under new ids")
	p.Var(&f.rate, "rate", "at most so many, such as 50/s (default: no limit)")
	p.IntVar(&f.stopAfter, "stop-after-failures", 0, "stop when so many of them have failed again; wants --rate")
	return cmd
}

func (f retryFlags) check() error {
	switch {
	case f.stopAfter < 0:
		return &Error{Usage, fmt.Errorf("--stop-after-failures: %d is negative", f.stopAfter), "leave it out to go on after failures"}
	case f.stopAfter > 0 && f.rate == 0:
		return &Error{Usage, errors.New("--stop-after-failures without --rate: all would be dispatched before one can fail"), "give --rate too, such as --rate 10/s"}
	case f.stopAfter > 0 && f.asNew:
		return &Error{Usage, errors.New("--stop-after-failures cannot follow messages with new ids"), "leave --as-new out"}
	}
	return nil
}

// retried is the result of failed retry.
type retried struct {
	Matching    int  `json:"matching"`
	Retried     int  `json:"retried"`
	FailedAgain int  `json:"failed_again"`
	DryRun      bool `json:"dry_run"`
}

func (s *session) failedRetry(ctx context.Context, filter failedFilter, args []string, f retryFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	if s.flags.server != "" && f.stopAfter > 0 {
		return errStopAfterRemote
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	found, err := s.selectFailed(ctx, db, &filter, args)
	if err != nil {
		return err
	}
	b := batches{s: s, found: found, filter: filter, message: "retrying", verb: "dispatched again", command: "failed retry", rate: f.rate, stopAfter: f.stopAfter, do: db.RetryFailed, failedAgain: db.FailedAgain}
	if f.asNew {
		b.do, b.command = db.RetryFailedAsNew, "failed retry --as-new"
	}
	result := retried{Matching: len(found), DryRun: f.dryRun}
	if !f.dryRun {
		if len(args) == 0 {
			if err := s.confirm(ctx, fmt.Sprintf("Dispatch %s again?", plural(len(found), "failed message"))); err != nil {
				return err
			}
		}
		err = b.run(ctx)
		result.Retried, result.FailedAgain = int(b.done.Load()), b.again
	}
	switch {
	case s.flags.json:
		s.stdout.json(result)
	case f.dryRun:
		s.stdout.line("%s would be dispatched again", plural(result.Matching, "failed message"))
	default:
		s.stdout.line("%s dispatched again", plural(result.Retried, "message"))
	}
	if err == nil && !f.dryRun && result.Retried < result.Matching {
		err = overtaken(result.Matching - result.Retried)
	}
	return err
}

// overtaken is the error about n messages that another operator has changed.
func overtaken(n int) error {
	return &Error{Partial, fmt.Errorf("%s left: another operator was quicker", plural(n, "message")), ""}
}

// batches is one change of many dead letters, some at a time, so that each transaction is
// short.
type batches struct {
	s                      *session
	found                  []selected
	filter                 failedFilter
	message, verb, command string
	rate                   rate
	stopAfter              int
	do                     func(ctx context.Context, numbers ...int64) (int, error)
	failedAgain            func(ctx context.Context, replayed ...admin.FailedMessage) (int, error) // of a stopAfter

	tried   int          // of found
	done    atomic.Int64 // of those tried
	again   int          // failed again
	recount time.Time    // again is not counted before
}

const maxBatch = 100

func (b *batches) run(ctx context.Context) error {
	stop := b.s.showProgress(progress{message: b.message, verb: b.verb, done: func() int { return int(b.done.Load()) }})
	defer stop()
	size := maxBatch
	if b.rate > 0 {
		size = min(max(int(b.rate), 1), maxBatch)
	}
	for chunk := range slices.Chunk(b.found, size) {
		if b.tried > 0 {
			if err := b.pause(ctx, size); err != nil {
				return b.partial(err)
			}
		}
		numbers := make([]int64, len(chunk))
		for i, m := range chunk {
			numbers[i] = m.number
		}
		if err := b.change(ctx, numbers); err != nil {
			return b.partial(err)
		}
	}
	return nil
}

// changeTimeout bounds a chunk.
const changeTimeout = time.Minute

// change changes a chunk. One that has begun outlives an interrupt: a cancelled commit would leave
// its result unknown.
func (b *batches) change(ctx context.Context, numbers []int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	filter := b.filter
	if len(filter.Numbers) > 0 {
		filter.Numbers = numbers // the audit has a row for each chunk
	}
	n, err := b.do(filter.action(ctx), numbers...)
	if err == nil {
		b.tried += len(numbers)
		b.done.Add(int64(n))
	}
	return err
}

// pause waits as the rate asks, and counts what has failed again.
func (b *batches) pause(ctx context.Context, size int) error {
	if b.rate > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(float64(size) / float64(b.rate) * float64(time.Second))):
		}
	}
	if b.stopAfter == 0 || time.Now().Before(b.recount) {
		return nil
	}
	began := time.Now()
	dispatched := make([]admin.FailedMessage, b.tried)
	for i, m := range b.found[:b.tried] {
		dispatched[i] = admin.FailedMessage{Transport: m.transport, ID: m.id}
	}
	n, err := b.failedAgain(ctx, dispatched...)
	if err != nil {
		return err
	}
	// A count takes the longer, the more was dispatched: the rate must not suffer from it.
	b.recount = time.Now().Add(20 * time.Since(began))
	if b.again = n; n >= b.stopAfter {
		return fmt.Errorf("stopped: %d of the %s dispatched have failed again", n, plural(b.tried, "message"))
	}
	return nil
}

// partial is the error of a change that ended early, with the command that does the rest.
func (b *batches) partial(err error) error {
	if errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	if b.done.Load() == 0 {
		return err
	}
	rest := b.found[b.tried:]
	command := "the same command"
	switch {
	case len(b.filter.Numbers) > 0:
		numbers := make([]string, len(rest))
		for i, m := range rest {
			numbers[i] = strconv.FormatInt(m.number, 10)
		}
		command = fmt.Sprintf("`%s %s %s`", b.s.app.Name, b.command, strings.Join(numbers, " "))
	case b.filter.Until == "":
		// Those that fail again meanwhile fail later than any that was found.
		last := slices.MaxFunc(b.found, func(x, y selected) int { return x.failedAt.Compare(y.failedAt) }).failedAt
		command = "the same command with --until " + last.Add(time.Microsecond).Format(time.RFC3339Nano)
		if b.filter.All {
			command += " in place of --all"
		}
	}
	return &Error{Partial, err, fmt.Sprintf("%s %s, %s left: %s does the rest", plural(int(b.done.Load()), "message"), b.verb, count(len(rest)), command)}
}

// A rate is a flag: messages a second.
type rate float64

// String implements pflag.Value.
func (r *rate) String() string {
	if *r == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*r), 'g', -1, 64) + "/s"
}

// Set implements pflag.Value.
func (r *rate) Set(text string) error {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.Atoi(number)
	seconds := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[unit]
	if err != nil || n < 1 || seconds == 0 {
		return fmt.Errorf("%q is not a number of messages and a unit (such as 50/s, 100/m or 500/h)", text)
	}
	*r = rate(float64(n) / seconds)
	return nil
}

// Type implements pflag.Value.
func (r *rate) Type() string { return "rate" }
