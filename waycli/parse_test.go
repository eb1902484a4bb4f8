package waycli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestConditionsCompare(t *testing.T) {
	for _, c := range []struct {
		text string
		v    float64
		want bool
	}{
		{"pending>1000", 1000, false}, {"pending>1000", 1001, true},
		{"pending >= 1000", 1000, true}, {"blocked<1", 0, true}, {"blocked<=0", 1, false},
		{"delayed==0", 0, true}, {"delayed!=0", 0, false}, {"oldest_age>5m", 300, false}, {"oldest_age>5m", 300.1, true}, {"oldest_age>1d", 90000, true},
	} {
		parsed, err := parseCondition(c.text, allFigures)
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed.holds(c.v); got != c.want {
			t.Errorf("%s with %v: %v, want %v", c.text, c.v, got, c.want)
		}
	}
}

func TestWrongConditionsAreUsageErrors(t *testing.T) {
	for _, text := range []string{"", "pending", ">1", "pending=1", "pending=>1", "pending>", "pending>1.5", "pending>many", "oldest_age>5", "age>5m", "pending!1"} {
		if _, err := parseCondition(text, outboxFigures); ExitCode(err) != 2 {
			t.Errorf("parseCondition(%q) = %v, want a usage error", text, err)
		}
	}
}

func TestVariableIsWhatAShellTakes(t *testing.T) {
	for name, want := range map[string]string{"tenant-id": "TENANT_ID", "x.y": "X_Y", "A1_b": "A1_B"} {
		if got := variable(name); got != want {
			t.Errorf("variable(%q) = %q, want %q", name, got, want)
		}
	}
}

// The body's bytes pass unchanged, and no error quotes them.
func FuzzParseMessage(f *testing.F) {
	for _, seed := range []string{
		`{"name":"order.placed","key":"ключ","body":{"n" : 1.00},"headers":{"a":"b"},"id":"x","delay":"5m"}`,
		`{"name":"order.placed","body":null}`, `{"body":"s3cr3t"`, `["s3cr3t"]`, `{"kye":"s3cr3t"}`, `{"headers":{"a":1}}`, `{} {}`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parseMessage(line)
		if err != nil {
			if len(line) > 40 && strings.Contains(err.Error(), string(line[:40])) {
				t.Errorf("the error quotes the line: %v", err)
			}
			return
		}
		if m.Body != nil && (!json.Valid(m.Body) || !bytes.Contains(line, m.Body)) {
			t.Errorf("body %q differs from the body in the line: %q", m.Body, line)
		}
	})
}

func TestBlankLinesAreCountedAndPassedOver(t *testing.T) {
	in := newJSONLines(strings.NewReader("\n{\"name\":\"a\"}\r\n   \n{\"name\":\"b\"}"))
	var got []string
	var lines []int
	for {
		m, err := in.next()
		if err != nil {
			break
		}
		got, lines = append(got, m.Name), append(lines, in.number)
	}
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int{2, 4}, lines); diff != "" {
		t.Error(diff)
	}
}

func TestMomentsAreTimesOrAges(t *testing.T) {
	now := time.Date(2026, 11, 23, 15, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"2h": now.Add(-2 * time.Hour), "7d": now.AddDate(0, 0, -7), "2026-11-23": now.Truncate(24 * time.Hour), "2026-11-23T15:04:05Z": now, "2026-11-23T16:04:05+01:00": now,
		"2026-11-23T15:04:05": now, "2026-11-23 15:04:05": now, "2026-11-23T15:04": now.Truncate(time.Minute), "2026-11-23 15:04": now.Truncate(time.Minute),
	} {
		if got, err := parseMoment("--since", text, now); err != nil || !got.Equal(want) {
			t.Errorf("parseMoment(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	if got, err := parseMoment("--since", "yesterday", now); ExitCode(err) != 2 {
		t.Errorf("parseMoment(yesterday) = %v, %v, want a usage error", got, err)
	}
}
