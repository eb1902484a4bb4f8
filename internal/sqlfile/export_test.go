package sqlfile

import (
	"maps"
	"slices"
)

// Names returns the names of the statements.
func (s Set) Names() []string { return slices.Sorted(maps.Keys(s.queries)) }
