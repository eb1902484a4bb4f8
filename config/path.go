package config

import (
	"slices"
	"strconv"
	"strings"
)

// A keyPath leads to a value of a Config, from the outermost key inwards.
type keyPath []string

func (p keyPath) child(key string) keyPath {
	return append(slices.Clip(p), key)
}

// String joins the keys with dots and quotes keys with characters other than letters,
// digits, _ and -.
func (p keyPath) String() string {
	words := make([]string, len(p))
	for i, key := range p {
		words[i] = key
		if strings.ContainsFunc(key, special) || key == "" {
			words[i] = strconv.Quote(cut(key, maxNameBytes))
		}
	}
	return strings.Join(words, ".")
}

func special(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
}
