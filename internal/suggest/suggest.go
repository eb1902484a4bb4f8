// Package suggest finds the known word that is nearest to a mistyped one.
package suggest

import (
	"strconv"
	"strings"
)

// Hint proposes the known word that takes the fewest edits to reach from word, the first of
// equals, or all of them, called noun, where each is too far off to have been meant.
func Hint(word string, known []string, noun string) string {
	near, fewest := "", max(2, len(word)/2)+1
	for _, k := range known {
		if len(word) > 64 {
			break // no known word is, and the work grows with it
		}
		if n := distance(word, k); n < fewest && n < len(k) {
			near, fewest = k, n
		}
	}
	switch {
	case near != "":
		return "did you mean " + strconv.Quote(near) + "?"
	case len(known) == 0:
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
