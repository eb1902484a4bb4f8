package config

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocsListEverySchemeAndOption(t *testing.T) {
	data, err := os.ReadFile("../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	heading := regexp.MustCompile("(?m)^### (`.*)$")
	row := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\|")
	got := map[string][]string{}
	sections := heading.FindAllSubmatchIndex(data, -1)
	for i, at := range sections {
		end := len(data)
		if i+1 < len(sections) {
			end = sections[i+1][0]
		}
		var options []string
		for _, m := range row.FindAllSubmatch(data[at[1]:end], -1) {
			options = append(options, fmt.Sprintf("%s %s", m[1], m[2]))
		}
		// A heading names one scheme or several that take the same options.
		for word := range strings.SplitSeq(string(data[at[2]:at[3]]), ", ") {
			got[strings.Trim(word, "`")] = slices.Sorted(slices.Values(options))
		}
	}
	want := map[string][]string{}
	for name, s := range schemes {
		var options []string
		for _, o := range s.options {
			options = append(options, fmt.Sprintf("%s %s", o.name, o.kind))
		}
		want[name] = slices.Sorted(slices.Values(options))
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("schemes (-code +docs):\n%s", diff)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("options (-code +docs):\n%s", diff)
	}
}

func TestDocsExamplesParse(t *testing.T) {
	data, err := os.ReadFile("../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	getenv := environment(map[string]string{"BROKER_PASSWORD": "s3cret"})
	files := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(data, -1)
	for _, m := range files {
		if _, err := Parse("waybill.yaml", m[1], getenv); err != nil {
			t.Errorf("%v in\n%s", err, m[1])
		}
	}
	dsns := regexp.MustCompile("(?s)```dsn\n(.*?)```").FindAllSubmatch(data, -1)
	for _, m := range dsns {
		for line := range strings.Lines(string(m[1])) {
			if _, err := ParseDSN(strings.TrimSpace(line)); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if len(files) < 2 || len(dsns) < 1 {
		t.Errorf("found %d files and %d lists of DSNs", len(files), len(dsns))
	}
}
