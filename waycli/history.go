package waycli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/history"
)

// history returns the recorder of the configured database, or nil if that is not open or has
// no history.
func (s *session) history() *history.Recorder {
	db, ok := s.opened[s.cfg.Database.Reveal()]
	if ok && !s.cfg.NoHistory && s.recorder == nil {
		s.recorder, _ = history.New(db, history.Config{Log: s.log}) // which fails without a database alone
	}
	return s.recorder
}

// lateHistory is the observer of what was configured before the database was open, whose
// recorder it has from then on.
type lateHistory struct {
	recorder atomic.Pointer[history.Recorder]
}

func (l *lateHistory) Observe(ctx context.Context, e waybill.Event) {
	if r := l.recorder.Load(); r != nil {
		r.Observe(ctx, e)
	}
}

// writeHistory writes the history until stop is called, and then the rest of it.
func (s *session) writeHistory(ctx context.Context) (stop func()) {
	if s.recorder == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.recorder.Run(ctx) })
	return func() { cancel(); wg.Wait() }
}

// seriesResult is the sums of one series, with its latencies.
type seriesResult struct {
	history.Series
	Dispatched  int64    `json:"dispatched"`
	Published   int64    `json:"published"`
	Refused     int64    `json:"refused"`
	Handled     int64    `json:"handled"`
	Failed      int64    `json:"failed"`
	Retried     int64    `json:"retried"`
	Duplicates  int64    `json:"duplicates"`
	Skipped     int64    `json:"skipped"`
	PublishMean float64  `json:"publish_mean_seconds"`
	HandlerMean float64  `json:"handling_mean_seconds"`
	Critical    critical `json:"critical_seconds"`
}

// critical is quantiles of the time from dispatch to the end of handling, in seconds.
type critical struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
}

func resultOf(row history.Row) seriesResult {
	mean := func(micros, n int64) float64 { return float64(micros) / float64(max(n, 1)) / 1e6 }
	return seriesResult{
		row.Series, row.Dispatched, row.Published, row.Refused, row.Handled, row.Failed, row.Retried, row.Duplicates, row.Skipped,
		mean(row.PublishMicros, row.Published), mean(row.HandlingMicros, row.Handled),
		critical{row.Critical.Quantile(.5).Seconds(), row.Critical.Quantile(.95).Seconds(), row.Critical.Quantile(.99).Seconds()},
	}
}

// statsHistory prints the sums of the last minutes.
func (s *session) statsHistory(ctx context.Context, last time.Duration) error {
	if last < time.Minute || last > history.Retention {
		return &Error{Usage, fmt.Errorf("--history: %v is not between 1m and 7d", last), "such as 1h: the history has a row for each minute, and is kept for 7 days"}
	}
	db, err := s.database(ctx)
	if err != nil {
		return err
	}
	until := time.Now().UTC().Truncate(time.Minute).Add(time.Minute)
	result := struct {
		Since  time.Time      `json:"since"`
		Until  time.Time      `json:"until"`
		Series []seriesResult `json:"series"`
	}{until.Add(-last.Truncate(time.Minute)), until, []seriesResult{}}
	rows, err := db.History(ctx, history.Query{Since: result.Since, Until: result.Until, BySeries: true})
	if err != nil {
		return err
	}
	table := make([][]any, len(rows))
	for i, row := range rows {
		r := resultOf(row)
		result.Series = append(result.Series, r)
		table[i] = []any{r.Transport, r.Message, r.Handler, r.Dispatched, r.Published, r.Refused, r.Handled, r.Failed, r.Retried, r.Duplicates, seconds(r.Critical.P50), seconds(r.Critical.P95), seconds(r.Critical.P99)}
	}
	if s.flags.json {
		s.stdout.json(result)
		return nil
	}
	s.stdout.table([]string{"TRANSPORT", "MESSAGE", "HANDLER", "DISPATCHED", "PUBLISHED", "REFUSED", "HANDLED", "FAILED", "RETRIED", "DUPLICATES", "P50", "P95", "P99"}, table)
	return nil
}

var errHistoryOnly = &Error{Usage, errors.New("--history with --fail-if: the conditions are about the present"), "leave one out"}
