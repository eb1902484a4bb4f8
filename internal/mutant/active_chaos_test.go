//go:build chaos

package mutant

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestActiveIsTheOneNamed(t *testing.T) {
	chosen := active
	t.Cleanup(func() { active = chosen })
	for _, name := range append([]string{""}, known...) {
		active = name
		for _, other := range append([]string{""}, known...) {
			if got, want := Active(other), other == name && name != ""; got != want {
				t.Errorf("WAYBILL_MUTANT=%q: Active(%q) = %t, want %t", name, other, got, want)
			}
		}
	}
}

func TestUnknownMutantPanicsAtStart(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "WAYBILL_MUTANT=delete-befor-confirm")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), `"delete-befor-confirm" is unknown; known are delete-before-confirm`) {
		t.Errorf("error %v with output %q, want a panic that lists the known names", err, out)
	}
}

func TestTheMakefileTriesEveryMutant(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{}
	for _, line := range strings.Split(string(makefile), "\n") {
		if name, list, ok := strings.Cut(line, " = "); ok && strings.HasSuffix(name, "MUTANTS") {
			for _, mutant := range strings.Fields(list) {
				tried[mutant] = true
			}
		}
	}
	for _, name := range known {
		if !tried[name] {
			t.Errorf("no list of mutants in the Makefile has %s", name)
		}
		delete(tried, name)
	}
	for name := range tried {
		t.Errorf("the Makefile tries %s, which does not exist", name)
	}
}
