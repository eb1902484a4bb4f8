package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// ParseDuration is time.ParseDuration with two more units, d (24 hours) and w
// (7 days): "30d", "2w", "1h30m", "1d12h". Everything that
// time.ParseDuration accepts means the same here.
func ParseDuration(s string) (time.Duration, error) {
	sign, rest := "", s
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		sign, rest = rest[:1], rest[1:]
	}
	if rest == "0" {
		return 0, nil
	}
	var sum time.Duration
	for ok := true; ok; ok = rest != "" {
		number, unit, after := cutTerm(rest)
		term, err := parseTerm(sign+number, unit)
		// The terms have one sign, so a sum beyond the range turns round.
		if next := sum + term; err == nil && (term < 0) == (next < sum) {
			sum, rest = next, after
			continue
		}
		return 0, fmt.Errorf("%s is not a duration (such as 15s, 1h30m or 30d)", quote(s))
	}
	return sum, nil
}

// cutTerm splits "1h30m" into "1", "h" and "30m".
func cutTerm(s string) (number, unit, rest string) {
	const digits = "0123456789."
	number = s[:len(s)-len(strings.TrimLeft(s, digits))]
	rest = s[len(number):]
	if i := strings.IndexAny(rest, digits); i >= 0 {
		return number, rest[:i], rest[i:]
	}
	return number, rest, ""
}

func parseTerm(number, unit string) (time.Duration, error) {
	hours := time.Duration(1)
	switch unit {
	case "":
		return 0, strconv.ErrSyntax // a bare 0 is a duration, but not a term of one
	case "d":
		hours = day / time.Hour
	case "w":
		hours = week / time.Hour
	default:
		return time.ParseDuration(number + unit)
	}
	term, err := time.ParseDuration(number + "h")
	if total := term * hours; err == nil && total/hours == term {
		return total, nil
	}
	return 0, strconv.ErrRange
}

// FormatDuration is the short form that ParseDuration reads back: whole days
// as "30d", and "5m" where time.Duration prints "5m0s".
func FormatDuration(d time.Duration) string {
	if d != 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
