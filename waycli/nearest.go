package waycli

import (
	"fmt"
	"strings"
)

// didYouMean is the hint for an unknown word: the nearest known one, or all of
// them where none is near.
func didYouMean(word string, known []string, noun string) string {
	best, fewest := "", max(2, len(word)/2)+1
	for _, k := range known {
		if n := distance(word, k); n < fewest && n < len(k) {
			best, fewest = k, n
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("did you mean %q?", best)
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
