package main

import (
	"fmt"
	"os"
	"strings"
)

const chartStyle = `<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.ours { fill: #0b6e4f } .peer { fill: #9aa4af } .rounds { stroke: #24292f }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .ours { fill: #3fb68b } .peer { fill: #6b7682 } .rounds { stroke: #e6edf3 } }
</style>`

// writeChart draws the pairs as SVG to a file, if it has a name: waybill and the peer beside each
// other, each with the range of its rounds.
func writeChart(path string, results []result, versions map[string]string) error {
	if path == "" {
		return nil
	}
	fastest := 0.0
	for _, r := range results {
		fastest = max(fastest, r.RateMax, r.YardstickMax)
	}
	var bars strings.Builder
	y := 4
	bar := func(class, name string, rate, low, high float64, note string) {
		at := func(rate float64) int { return 210 + int(380*rate/fastest) }
		fmt.Fprintf(&bars, `<text x="0" y="%d">%s</text>
<rect class="%s" x="%d" y="%d" width="%d" height="14"/>
<path class="rounds" d="M%d %dH%d"/>
<text x="%d" y="%[1]d">%.0[11]f%s</text>
`, y+12, name, class, at(0), y, max(1, at(rate)-at(0)), at(low), y+7, at(high), at(high)+8, rate, note)
		y += 18
	}
	for _, r := range results {
		note := ""
		if r.YardstickDisordered > 0 {
			note = fmt.Sprintf(", %d out of order", r.YardstickDisordered)
		}
		bar("ours", "waybill", r.Rate, r.RateMin, r.RateMax, "")
		bar("peer", r.Case, r.YardstickRate, r.YardstickMin, r.YardstickMax, note)
		y += 10
	}
	postgres, _, _ := strings.Cut(versions["PostgreSQL"], " ") // without the package's version
	first, servers := results[0], "PostgreSQL "+postgres
	if mq := versions["RabbitMQ"]; mq != "" {
		servers += ", RabbitMQ " + mq
	}
	title := fmt.Sprintf("Messages a second: medians of %d rounds, and their range. %d messages of %d keys.", first.Rounds, first.Rows, first.Keys)
	svg := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 %d" width="760" height="%[1]d" role="img" aria-label="%s">
%s
<title>%[2]s</title>
%[4]s<text x="0" y="%d">%[2]s</text>
<text x="0" y="%[6]d">%s, %s.</text>
</svg>
`, y+40, title, chartStyle, bars.String(), y+14, y+32, servers, versions["Go"])
	if err := os.WriteFile(path, []byte(svg), 0o644); err != nil {
		return fmt.Errorf("--chart: %w", err)
	}
	return nil
}
