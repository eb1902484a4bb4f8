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
	for _, name := range append([]string{""}, All()...) {
		active = name
		for _, other := range append([]string{""}, All()...) {
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
	if err == nil || !strings.Contains(string(out), `"delete-befor-confirm" is unknown; known are no-dispatch-lock`) {
		t.Errorf("error %v with output %q, want a panic that lists the known names", err, out)
	}
}
