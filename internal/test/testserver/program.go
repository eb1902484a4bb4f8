package testserver

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
)

// program finds the executable name: in the directories that match the pattern
// dir, the newest version first, then in the PATH. The error ends with mend,
// the words that tell how to get it.
func program(name, dir, mend string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(dir, name))
	slices.SortFunc(found, func(a, b string) int { // .../9/bin is older than .../15/bin
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(b, a))
	})
	for _, candidate := range append(found, name) {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s in %s or in the PATH: %s", name, dir, mend)
}
