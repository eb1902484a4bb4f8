package dashboard

import (
	"reflect"
	"strings"
)

// columns are the names of the JSON fields of a struct, those of embedded ones included.
func columns[T any]() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && f.IsExported() {
			names = append(names, name)
		}
	}
	return names
}
