//go:build chaos

package mutant

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

var active = mustChoose(os.Getenv("WAYBILL_MUTANT"))

// Active reports whether the bug of that name is planted in this process.
func Active(name string) bool { return active != "" && name == active }

// mustChoose panics on an unknown name: a typo would otherwise test the healthy
// program and call the mutant survived.
func mustChoose(name string) string {
	if name != "" && !slices.Contains(All(), name) {
		panic(fmt.Sprintf("mutant: WAYBILL_MUTANT=%q is unknown; known are %s", name, strings.Join(All(), ", ")))
	}
	return name
}
