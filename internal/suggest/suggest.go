// Package suggest finds the known word that is nearest to a mistyped one.
package suggest

import (
	"strconv"
	"strings"
)

// Word returns the known word that takes the fewest edits to reach from word,
// or "" where every one is too far off to have been meant. Of equals the first
// wins.
func Word(word string, known []string) string {
	if len(word) > 64 {
		return "" // no known word is, and the work grows with it
	}
	best, fewest := "", max(2, len(word)/2)+1
	for _, k := range known {
		if n := distance(word, k); n < fewest && n < len(k) {
			best, fewest = k, n
		}
	}
	return best
}

// Hint proposes a known word for an unknown one: the nearest, or all of them,
// called noun, where none is near.
func Hint(word string, known []string, noun string) string {
	if near := Word(word, known); near != "" {
		return "did you mean " + strconv.Quote(near) + "?"
	}
	if len(known) == 0 {
		return "there are no " + noun
	}
	return noun + ": " + strings.Join(known, ", ")
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
