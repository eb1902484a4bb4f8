package waycli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/suggest"
)

const failIfHelp = `
--fail-if 'NAME>NUMBER' makes it exit with 7 if that is so; it may be repeated.
Names: pending and delayed (messages), failed (dead letters) and blocked (keys), each of
all transports shown, and oldest_age (of the oldest pending message, such as 5m).
"stats" has also retrying (messages that failed in a worker, with the later ones of
their keys) and parked (those of them that wait for "retries release"), and counts
the dead letters of workers too; it exits with 6 if a queue of a database could not be
counted, and no condition holds. Operators: > >= < <= == !=.`

func failIfFlag(cmd *cobra.Command, to *[]string) {
	cmd.Flags().StringArrayVar(to, "fail-if", nil, "exit with 7 if so, such as 'pending>1000' or 'oldest_age>5m'")
}

// A condition is one --fail-if.
type condition struct {
	text, name, operator string
	value                float64 // seconds for an age
}

// operators, the two-character ones first.
var operators = []string{">=", "<=", "==", "!=", ">", "<"}

// outboxFigures are the names of the figures of outbox stats, allFigures those of stats.
var (
	outboxFigures = []string{"pending", "oldest_age", "blocked", "delayed", "failed"}
	allFigures    = append(slices.Clone(outboxFigures), "retrying", "parked")
)

// parseConditions reads conditions on the figures of those names.
func parseConditions(texts, names []string) ([]condition, error) {
	all := make([]condition, len(texts))
	for i, text := range texts {
		c, err := parseCondition(text, names)
		if err != nil {
			return nil, err
		}
		all[i] = c
	}
	return all, nil
}

func parseCondition(text string, names []string) (condition, error) {
	i := strings.IndexAny(text, "<>=!")
	if i < 0 {
		return condition{}, &Error{Usage, fmt.Errorf("--fail-if: %q compares nothing", text), "such as 'pending>1000', in quotes"}
	}
	c := condition{text: text, name: strings.TrimSpace(text[:i])}
	for _, op := range operators {
		if rest, ok := strings.CutPrefix(text[i:], op); ok {
			c.operator = op
			return c, c.parse(strings.TrimSpace(rest), names)
		}
	}
	return c, &Error{Usage, fmt.Errorf("--fail-if: %q has no operator that is known", text), "operators: " + strings.Join(operators, " ")}
}

// parse reads the number of c.
func (c *condition) parse(number string, names []string) error {
	if !slices.Contains(names, c.name) && slices.Contains(allFigures, c.name) {
		return &Error{Usage, fmt.Errorf("--fail-if: %q is a figure of stats, and not of outbox stats", c.name), "ask `stats --fail-if`"}
	}
	if !slices.Contains(names, c.name) {
		return &Error{Usage, fmt.Errorf("--fail-if: unknown figure %q in %q", c.name, c.text), suggest.Hint(c.name, names, "figures")}
	}
	if c.name == "oldest_age" {
		d, err := config.ParseDuration(number)
		if err != nil {
			return &Error{Usage, fmt.Errorf("--fail-if: %q: %w", c.text, err), "such as 'oldest_age>5m'"}
		}
		c.value = d.Seconds()
		return nil
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		return &Error{Usage, fmt.Errorf("--fail-if: %q: %q is not a whole number", c.text, number), "such as 'pending>1000'"}
	}
	c.value = float64(n)
	return nil
}

func (c condition) holds(v float64) bool {
	switch c.operator {
	case ">":
		return v > c.value
	case ">=":
		return v >= c.value
	case "<":
		return v < c.value
	case "<=":
		return v <= c.value
	case "==":
		return v == c.value
	}
	return v != c.value
}

// addWorkers adds the failed messages of workers to figures.
func addWorkers(figures map[string]float64, queues []queueCount, workers []admin.WorkerStats) {
	for _, q := range queues {
		figures["retrying"] += float64(q.Retrying)
	}
	for _, w := range workers {
		figures["retrying"] += float64(w.Retrying)
		figures["parked"] += float64(w.Parked)
		figures["failed"] += float64(w.Failed)
	}
}

// figuresOf returns the figures of the outbox that conditions compare.
func figuresOf(stats []admin.OutboxStats) map[string]float64 {
	f := map[string]float64{"pending": 0, "oldest_age": 0, "blocked": 0, "delayed": 0, "failed": 0}
	for _, s := range stats {
		f["pending"] += float64(s.Pending)
		f["blocked"] += float64(s.BlockedKeys)
		f["delayed"] += float64(s.Delayed)
		f["failed"] += float64(s.Failed)
		f["oldest_age"] = max(f["oldest_age"], s.OldestAgeSeconds)
	}
	return f
}

// check is an error if any condition holds.
func check(conditions []condition, figures map[string]float64) error {
	var failed []string
	for _, c := range conditions {
		if v := figures[c.name]; c.holds(v) {
			failed = append(failed, fmt.Sprintf("%s is %s (--fail-if '%s')", c.name, figureText(c.name, v), c.text))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &Error{CheckFailed, errors.New("check failed: " + strings.Join(failed, ", ")), ""}
}

func figureText(name string, v float64) string {
	if name == "oldest_age" {
		return short(time.Duration(v * float64(time.Second)))
	}
	return strconv.Itoa(int(v))
}
