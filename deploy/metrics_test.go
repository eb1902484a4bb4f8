package deploy_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybill-go/waybill/wayprom"
)

// described keeps the registered collectors.
type described struct {
	prometheus.Registerer
	all []prometheus.Collector
}

func (d *described) Register(c prometheus.Collector) error {
	d.all = append(d.all, c)
	return nil
}

// metrics returns the labels of each metric of wayprom.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	var reg described
	if _, err := wayprom.New(&reg); err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, c := range append(reg.all, wayprom.NewCollector(struct{ wayprom.Database }{}, nil)) {
		descriptions := make(chan *prometheus.Desc, 100)
		c.Describe(descriptions)
		close(descriptions)
		for d := range descriptions {
			m := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{(.*?)\}`).FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("no name in %s", d)
			}
			labels[m[1]] = strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
			if c, ok := c.(*prometheus.HistogramVec); ok && c != nil {
				for _, part := range []string{"_count", "_sum", "_bucket"} {
					labels[m[1]+part] = append([]string{"le"}, labels[m[1]]...)
				}
				delete(labels, m[1])
			}
		}
	}
	return labels
}

var (
	metricName = regexp.MustCompile(`\bwaybill_\w+`)
	grouping   = regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
	selector   = regexp.MustCompile(`\{([^}]*)\}`)
	comparison = regexp.MustCompile(`(\w+)\s*[=!]~?`)
)

// expressionProblems are metrics and labels of an expression that there are not.
func expressionProblems(expr string, known map[string][]string) (found []string) {
	labels := []string{"instance"} // of the scrape
	names := metricName.FindAllString(expr, -1)
	if len(names) == 0 {
		found = append(found, "no metric")
	}
	for _, name := range names {
		of, ok := known[name]
		if !ok {
			found = append(found, "no metric "+name)
		}
		labels = append(labels, of...)
	}
	var used []string
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		used = append(used, strings.Split(strings.ReplaceAll(m[1], " ", ""), ",")...)
	}
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		for _, c := range comparison.FindAllStringSubmatch(m[1], -1) {
			used = append(used, c[1])
		}
	}
	for _, label := range used {
		if !slices.Contains(labels, label) {
			found = append(found, "no label "+label)
		}
	}
	if strings.Contains(expr, " offset ") && !strings.Contains(expr, " or ") {
		found = append(found, "a new series has no value at the offset")
	}
	if strings.Count(expr, "(") != strings.Count(expr, ")") {
		found = append(found, "parentheses")
	}
	return found
}

func TestAlertRules(t *testing.T) {
	known, doc := metrics(t), documents(t, read(t, "prometheus/alerts.yaml"))[0]
	rules, _ := doc.at("groups", 0, "rules").v.([]any)
	if len(rules) == 0 {
		t.Fatal("no rules")
	}
	for _, rule := range rules {
		r := object{rule}
		for _, problem := range expressionProblems(r.at("expr").text(), known) {
			t.Errorf("%s: %s", r.at("alert").text(), problem)
		}
		command := strings.Fields(r.at("annotations", "command").text())
		if len(command) < 2 || command[0] != "waybill" || r.at("annotations", "summary").text() == "" {
			t.Errorf("%s: annotations %v", r.at("alert").text(), r.at("annotations").v)
			continue
		}
		for _, problem := range (process{where: r.at("alert").text(), args: command[1:], env: secrets}).problems(variables(t)) {
			t.Error(problem)
		}
	}
}

func TestGrafanaDashboard(t *testing.T) {
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "grafana/waybill.json")), &board); err != nil {
		t.Fatal(err)
	}
	known, shown := metrics(t), map[string]bool{}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			for _, problem := range expressionProblems(target.Expr, known) {
				t.Errorf("%s: %s in %s", p.Title, problem, target.Expr)
			}
			for _, name := range metricName.FindAllString(target.Expr, -1) {
				shown[family(name)] = true
			}
			for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !strings.Contains(target.Expr, m[1]) {
					t.Errorf("%s: the legend has %s, which %s leaves out", p.Title, m[1], target.Expr)
				}
			}
		}
	}
	for name := range known {
		if !shown[family(name)] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// family is the name of a metric without the part of a histogram.
func family(name string) string {
	for _, part := range []string{"_count", "_sum", "_bucket"} {
		name = strings.TrimSuffix(name, part)
	}
	return name
}

func TestMistakesOfExpressionsAreFound(t *testing.T) {
	for expr, want := range map[string]string{
		`max by (transport) (waybill_outbox_waiting)`:                 "[no metric waybill_outbox_waiting no label transport]",
		`max by (queue) (waybill_outbox_pending)`:                     "[no label queue]",
		`rate(waybill_relay_published_total{outcome="x"}[5m])`:        "[no label outcome]",
		`rate(waybill_handler_duration_seconds[5m])`:                  "[no metric waybill_handler_duration_seconds]",
		`max(waybill_outbox_pending`:                                  "[parentheses]",
		`up`:                                                          "[no metric]",
		`waybill_failed_messages > waybill_failed_messages offset 1h`: "[a new series has no value at the offset]",
		`max by (transport) (waybill_outbox_pending)`:                 "[]",
	} {
		if got := fmt.Sprint(expressionProblems(expr, metrics(t))); got != want {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
}
