package main

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"slices"
	"strings"
)

// A bar is one side of a pair, in units of the chart.
type bar struct {
	Class, Name, Label string
	Y, Middle, Text    int // its upper edge, its middle, and the base line of its texts
	Width, LabelAt     int
	Low, High          int // the slowest and the fastest round
}

// The chart is so wide; bars begin at barsAt, and the longest is barsWide.
const chartWide, barsAt, barsWide = 760, 210, 380

var chart = template.Must(template.New("chart").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Wide}} {{.High}}" width="{{.Wide}}" height="{{.High}}" role="img" aria-label="{{.Title}}">
<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.ours { fill: #0b6e4f } .peer { fill: #9aa4af } .rounds { stroke: #24292f }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .ours { fill: #3fb68b } .peer { fill: #6b7682 } .rounds { stroke: #e6edf3 } }
</style>
<title>{{.Title}}</title>
{{range .Bars}}<text x="0" y="{{.Text}}">{{.Name}}</text>
<rect class="{{.Class}}" x="{{$.At}}" y="{{.Y}}" width="{{.Width}}" height="14"/>
<path class="rounds" d="M{{.Low}} {{.Middle}}H{{.High}}"/>
<text x="{{.LabelAt}}" y="{{.Text}}">{{.Label}}</text>
{{end}}<text x="0" y="{{.Foot}}">{{.Title}}</text>
<text x="0" y="{{.Foot2}}">{{.Where}}</text>
</svg>
`))

// writeChart draws the pairs as SVG to a file, if it has a name: waybill and the peer beside each
// other, each with the range of its rounds.
func writeChart(path string, results []result, versions map[string]string) error {
	if path == "" {
		return nil
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("--chart: %w", err)
	}
	return errors.Join(printChart(file, results, versions), file.Close())
}

func printChart(w io.Writer, results []result, versions map[string]string) error {
	fastest := slices.MaxFunc(results, func(a, b result) int {
		return cmp.Compare(max(a.RateMax, a.YardstickMax), max(b.RateMax, b.YardstickMax))
	})
	scale := barsWide / max(fastest.RateMax, fastest.YardstickMax)
	var bars []bar
	y := 4
	add := func(class, name string, rate, low, high float64, note string) {
		to := func(rate float64) int { return barsAt + int(rate*scale) }
		bars = append(bars, bar{
			Class: class, Name: name, Label: fmt.Sprintf("%.0f%s", rate, note), Y: y, Text: y + 12, Width: max(1, to(rate)-barsAt),
			LabelAt: to(high) + 8, Low: to(low), High: to(high), Middle: y + 7,
		})
		y += 18
	}
	for _, r := range results {
		note := ""
		if r.YardstickDisordered > 0 {
			note = fmt.Sprintf(", %d out of order", r.YardstickDisordered)
		}
		add("ours", "waybill", r.Rate, r.RateMin, r.RateMax, "")
		add("peer", r.Case, r.YardstickRate, r.YardstickMin, r.YardstickMax, note)
		y += 10
	}
	postgres, _, _ := strings.Cut(versions["PostgreSQL"], " ") // without the package's version
	first, servers := results[0], "PostgreSQL "+postgres
	if mq := versions["RabbitMQ"]; mq != "" {
		servers += ", RabbitMQ " + mq
	}
	return chart.Execute(w, map[string]any{
		"Wide": chartWide, "High": y + 40, "At": barsAt, "Bars": bars, "Foot": y + 14, "Foot2": y + 32,
		"Title": fmt.Sprintf("Messages a second: medians of %d rounds, and their range. %d messages of %d keys.", first.Rounds, first.Rows, first.Keys),
		"Where": fmt.Sprintf("%s, %s.", servers, versions["Go"]),
	})
}
