package dashboard

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/history"
)

// spans are the times that charts show, with the step of their points.
var spans = []struct {
	name       string
	last, step time.Duration
}{
	{"15m", 15 * time.Minute, time.Minute}, {"1h", time.Hour, time.Minute}, {"6h", 6 * time.Hour, 5 * time.Minute},
	{"24h", 24 * time.Hour, 15 * time.Minute}, {"7d", 7 * 24 * time.Hour, 2 * time.Hour},
}

// chartsView is the charts of the overview, and the same as a table.
type chartsView struct {
	Known  bool // the database has a history
	Span   string
	Spans  [][2]string // names and addresses
	Charts []chart
	Steps  []chartStep
}

// A chart is a drawing of 640 by 200 units, of which the lines have 560 by 150.
type chart struct {
	ID, Title, Description string
	Lines                  []chartLine
	Rows                   []chartMark // values beside their lines
	Columns                []chartMark // times below their lines
}

type chartLine struct {
	Name   string
	Class  string // of its colour and dashes
	Points string
}

type chartMark struct {
	At   string // position
	Text string
}

// chartStep is a row of the table.
type chartStep struct {
	At                                             time.Time
	Dispatched, Published, Handled, Failed, Others int64
	P50, P95, P99                                  string
}

const (
	plotLeft, plotTop, plotWidth, plotHeight = 64.0, 10.0, 560.0, 150.0
)

// readHistory reads the rows of the span that an address names.
func (d *Dashboard) readHistory(ctx context.Context, values url.Values, now time.Time) (rows []history.Row, span int, known bool, err error) {
	db, known := d.db.(history.Store)
	name := values.Get("range")
	for i, s := range spans {
		if s.name == name || name == "" && s.name == "1h" {
			if !known {
				return nil, i, false, nil
			}
			until := lastStep(now, s.step)
			rows, err = db.History(ctx, history.Query{Since: until.Add(-s.last), Until: until, Step: s.step})
			return rows, i, known, err
		}
	}
	return nil, 0, known, bad("range: unknown range "+strconv.Quote(name), "15m, 1h, 6h, 24h or 7d")
}

// lastStep is the end of the last step whose counts are complete: processes write theirs up to
// a minute late.
func lastStep(now time.Time, step time.Duration) time.Time {
	return now.Add(-time.Minute).Truncate(step)
}

func (d *Dashboard) charts(ctx context.Context, values url.Values) (v chartsView, err error) {
	now := time.Now().UTC()
	rows, span, known, err := d.readHistory(ctx, values, now)
	v.Known = known
	if err != nil || !known {
		return v, err
	}
	s := spans[span]
	v.Span = s.name
	for _, other := range spans {
		changed := maps.Clone(values)
		changed.Set("range", other.name)
		v.Spans = append(v.Spans, [2]string{other.name, "/?" + changed.Encode()})
	}
	steps := complete(rows, lastStep(now, s.step).Add(-s.last), s.step, int(s.last/s.step))
	rate := func(name, class string, of func(history.Counts) int64) series {
		return series{name, class, func(c history.Counts) float64 { return float64(of(c)) / s.step.Minutes() }}
	}
	at := func(name, class string, q float64) series {
		return series{name, class, func(c history.Counts) float64 { return c.Critical.Quantile(q).Seconds() }}
	}
	v.Charts = []chart{
		draw("throughput", "Messages a minute", perMinute, steps, s.step,
			rate("dispatched", "line-1", func(c history.Counts) int64 { return c.Dispatched }),
			rate("published", "line-2", func(c history.Counts) int64 { return c.Published }),
			rate("handled", "line-3", func(c history.Counts) int64 { return c.Handled })),
		draw("latency", "Time from dispatch to handled", inSeconds, steps, s.step,
			at("half of all within", "line-1", .5), at("95 % within", "line-2", .95), at("99 % within", "line-3", .99)),
		draw("failures", "Failures a minute", perMinute, steps, s.step,
			rate("failed attempts", "line-bad", func(c history.Counts) int64 { return c.Failed }),
			rate("refused by the broker", "line-2", func(c history.Counts) int64 { return c.Refused }),
			rate("dead letters", "line-3", func(c history.Counts) int64 { return c.Skipped })),
	}
	for _, row := range rows {
		v.Steps = append(v.Steps, chartStep{
			row.At, row.Dispatched, row.Published, row.Handled, row.Failed, row.Refused + row.Skipped,
			inSeconds(row.Critical.Quantile(.5).Seconds()), inSeconds(row.Critical.Quantile(.95).Seconds()), inSeconds(row.Critical.Quantile(.99).Seconds()),
		})
	}
	return v, nil
}

// complete adds the steps without messages.
func complete(rows []history.Row, since time.Time, step time.Duration, n int) []history.Row {
	all := make([]history.Row, n)
	for i := range all {
		all[i].At = since.Add(time.Duration(i) * step)
	}
	for _, row := range rows {
		if i := int(row.At.Sub(since) / step); i >= 0 && i < n {
			all[i] = row
		}
	}
	return all
}

// series is one line of a chart.
type series struct {
	name, class string
	value       func(history.Counts) float64
}

// draw returns the chart of some series; text writes a value.
func draw(id, title string, text func(float64) string, steps []history.Row, step time.Duration, all ...series) chart {
	top := 0.0
	for _, s := range all {
		for _, row := range steps {
			top = max(top, s.value(row.Counts))
		}
	}
	scale := roundUp(top)
	c := chart{ID: id, Title: title}
	var said []string
	for _, s := range all {
		var points strings.Builder
		highest := 0.0
		for i, row := range steps {
			value := s.value(row.Counts)
			highest = max(highest, value)
			x := plotLeft + plotWidth*float64(i)/float64(max(len(steps)-1, 1))
			fmt.Fprintf(&points, "%.1f,%.1f ", x, plotTop+plotHeight*(1-value/scale))
		}
		c.Lines = append(c.Lines, chartLine{s.name, s.class, strings.TrimSpace(points.String())})
		said = append(said, fmt.Sprintf("%s: %s at most, %s at last", s.name, text(highest), text(s.value(steps[len(steps)-1].Counts))))
	}
	c.Description = strings.Join(said, "; ") + "."
	for i := range 3 {
		share := float64(i) / 2
		c.Rows = append(c.Rows, chartMark{fmt.Sprintf("%.1f", plotTop+plotHeight*(1-share)), text(scale * share)})
	}
	layout := map[bool]string{true: "Jan 2", false: "15:04"}[step >= time.Hour]
	for i := range 5 {
		at := i * (len(steps) - 1) / 4
		c.Columns = append(c.Columns, chartMark{fmt.Sprintf("%.1f", plotLeft+plotWidth*float64(i)/4), steps[at].At.Format(layout)})
	}
	return c
}

// roundUp returns the next of 1, 2 and 5 times a power of ten; 1 for nothing.
func roundUp(top float64) float64 {
	if top <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(top)))
	for _, times := range []float64{1, 2, 5} {
		if top <= times*unit {
			return times * unit
		}
	}
	return 10 * unit
}

func perMinute(n float64) string {
	if n != math.Trunc(n) && n < 10 {
		return strconv.FormatFloat(n, 'g', 2, 64)
	}
	return count(int(math.Round(n)))
}

func inSeconds(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s < .9995: // above it, three digits of milliseconds would be 1e+03
		return strconv.FormatFloat(1000*s, 'g', 3, 64) + " ms"
	case s < 10:
		return strconv.FormatFloat(s, 'g', 2, 64) + " s"
	}
	return duration(time.Duration(s * float64(time.Second)))
}

func (d *Dashboard) apiHistory(r *request) error {
	rows, _, _, err := d.readHistory(r.Context(), r.URL.Query(), time.Now().UTC())
	if err != nil {
		return err
	}
	return answer(r, rows, false, nil)
}
