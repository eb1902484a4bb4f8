package waybill

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// atField adds the path of the field to an error of encoding/json about its type.
func atField(msg any, err error) error {
	var unsupported *json.UnsupportedTypeError
	if !errors.As(err, &unsupported) {
		return err
	}
	path := fieldPath(reflect.TypeOf(msg), unsupported.Type, map[reflect.Type]bool{})
	if path == "" {
		return err
	}
	return fmt.Errorf("field %s: %w: give it another type, or the tag `json:\"-\"`", path[1:], err)
}

// fieldPath returns the path of the first encoded field of typ that has type want, such as
// ".Order.Done", or the empty string.
func fieldPath(typ, want reflect.Type, seen map[reflect.Type]bool) string {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Array || typ.Kind() == reflect.Map {
		if typ == want || seen[typ] {
			return ""
		}
		seen[typ] = true // a type may be a list or map of itself
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || seen[typ] {
		return ""
	}
	seen[typ] = true
	for _, field := range reflect.VisibleFields(typ) {
		if !field.IsExported() || field.Tag.Get("json") == "-" {
			continue
		}
		if leads(field.Type, want) {
			return "." + field.Name
		}
		if path := fieldPath(field.Type, want, seen); path != "" {
			return "." + field.Name + path
		}
	}
	return ""
}

// leads reports whether typ is want, or a pointer, list or map of it.
func leads(typ, want reflect.Type) bool {
	for seen := map[reflect.Type]bool{}; typ != want; typ = typ.Elem() {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		default:
			return false
		}
		if seen[typ] {
			return false
		}
		seen[typ] = true
	}
	return true
}
