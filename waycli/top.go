package waycli

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/history"
)

const (
	topEvery   = time.Second
	topHistory = 5 * time.Minute // that the sums of a frame cover
)

func (c *cli) topCommand() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the outbox, queues, retries, relays and workers in the terminal",
		Long: `Watch what "stats" and "workers list" show, and the sums of the last five minutes, on
the whole terminal: each second, or less often if the database needs longer to count.
Tables that do not fit are shortened. /S of a worker is handled messages a second
between its last two reports, which come every five seconds.

Keys: q quits, p pauses and continues. SIGINT and SIGTERM quit, too. During an outage of
the database the last figures stay, with the error above them.

It shows one frame and ends with --once, and without a terminal. With --json, one frame:
{"at", "database", "outbox", "queues", "retries", "inbox", "relays", "workers", "paused",
"problems", "last"}, the lists as "stats" and "workers list" have them. Last is the sum of
five minutes, as a series of "stats --history".`,
		Example: `  waybill top
  waybill top --once`,
		Args: cobra.NoArgs,
		RunE: c.run(func(ctx context.Context, s *session, _ []string) error { return s.top(ctx, once) }),
	}
	cmd.Flags().BoolVar(&once, "once", false, "show one frame")
	return cmd
}

// topFrame is the content of one frame, and the JSON of top.
type topFrame struct {
	At       time.Time `json:"at"`
	Database string    `json:"database"`
	statsResult
	Workers  []admin.Worker `json:"workers"`
	Paused   []admin.Pause  `json:"paused"`
	Problems []statsProblem `json:"problems"`
	Last     seriesResult   `json:"last"`

	perSecond map[string]float64 // handled messages, by id of the worker, as far as known
	reports   bool               // whether relays of this database report
	paused    bool
	err       error // of the attempt to replace this frame
}

func (s *session) top(ctx context.Context, once bool) error {
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	frame, err := s.collectTop(ctx, db)
	if err != nil {
		return err
	}
	out, live := s.stdout.w.(*os.File)
	switch {
	case s.flags.json:
		s.stdout.json(frame)
		return nil
	case once || !live || !isTerminal(s.stdin) || !isTerminal(out):
		for _, line := range frame.render(0, 0) {
			s.stdout.line("%s", line)
		}
		return nil
	}
	terminal, err := openTerminal(ctx, s.stdin.(*os.File), out)
	if err != nil {
		return err
	}
	return errors.Join(s.topLoop(ctx, db, frame, terminal), terminal.close())
}

// topLoop shows frames until ctx ends or a key quits.
func (s *session) topLoop(ctx context.Context, db Database, shown topFrame, t *terminal) error {
	type result struct {
		frame topFrame
		err   error
		took  time.Duration
	}
	collect, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	results := make(chan result, 1)
	next := time.After(topEvery)
	for {
		if err := t.draw(shown.render(t.size())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case key := <-t.keys:
			switch key {
			case 'q', 'Q', ctrlC:
				return nil
			case 'p', 'P':
				shown.paused = !shown.paused
			}
		case <-next:
			if shown.paused {
				next = time.After(topEvery)
				continue
			}
			wg.Go(func() { // one at a time: the session belongs to it until its result is read
				begun := time.Now()
				frame, err := s.collectTop(collect, db)
				results <- result{frame, err, time.Since(begun)}
			})
		case r := <-results:
			// Counting a large backlog must not become the load.
			next = time.After(max(topEvery, 20*r.took))
			switch {
			case shown.paused:
			case r.err != nil:
				shown.err = r.err
			default:
				r.frame.addRates(shown)
				shown = r.frame
			}
		}
	}
}

// collectTop reads the figures of a frame.
func (s *session) collectTop(ctx context.Context, db Database) (f topFrame, err error) {
	f.At, f.Database, f.reports = time.Now(), s.cfg.Database.String(), db.Traits().KeepsReports
	if f.statsResult, err = s.collectStats(ctx, db); err != nil {
		return f, err
	}
	if f.Workers, err = workersOf(ctx, db); err != nil {
		return f, err
	}
	if f.Paused, err = db.PausedTransports(ctx); err != nil {
		return f, err
	}
	f.Problems = s.notRelayed(db, f.statsResult)
	until := f.At.UTC().Truncate(time.Minute).Add(time.Minute)
	rows, err := db.History(ctx, history.Query{Since: until.Add(-topHistory), Until: until, Step: topHistory})
	var sum history.Row
	for _, row := range rows { // two, unless a step begins at Since
		sum.Add(row.Counts)
	}
	f.Last = resultOf(sum)
	return f, err
}

// addRates computes the rates of workers by their reports in before and f.
func (f *topFrame) addRates(before topFrame) {
	f.perSecond = map[string]float64{}
	earlier := map[string]admin.Worker{}
	for _, w := range before.Workers {
		earlier[w.ID] = w
	}
	for _, w := range f.Workers {
		b, known := earlier[w.ID]
		if between := w.SeenAt.Sub(b.SeenAt).Seconds(); known && between > 0 {
			f.perSecond[w.ID] = float64(w.Handled-b.Handled) / between
		} else if rate, ok := before.perSecond[w.ID]; ok {
			f.perSecond[w.ID] = rate // no report since
		}
	}
}
