package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
)

// rows are messages to load: those with the numbers from first on. Bodies have
// 200 bytes and begin with the numbers of row and key, 8 bytes each.
type rows struct {
	first, n int
	keys     int
	firstKey int  // the number of the first key
	zipf     bool // some keys have many rows; otherwise all have as many
}

// decks is how many slots a deck has. A row's number is a pair of slots.
const decks = 10_000

// values are the slots of a deck, each with the number of a key: drawn from a
// Zipf distribution (s = 1.1) of 1000 keys, and the same in each run.
func values() string {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, 999)
	slots := make([]string, decks)
	for i := range slots {
		slots[i] = fmt.Sprintf("(%d, %d)", i, zipf.Uint64())
	}
	return strings.Join(slots, ", ")
}

// numbers selects i and k, the numbers of the rows and of their keys, from a
// deck in any database.
func (r rows) numbers(deck string) string {
	k := "b.k"
	if !r.zipf {
		k = fmt.Sprintf("%d + (a.slot * %d + b.slot) %% %d", r.firstKey, decks, r.keys)
	}
	last := r.first + r.n - 1
	return fmt.Sprintf(`SELECT a.slot * %[1]d + b.slot AS i, %[2]s AS k FROM %[3]s AS a CROSS JOIN %[3]s AS b
		WHERE a.slot BETWEEN %[4]d AND %[5]d AND a.slot * %[1]d + b.slot BETWEEN %[6]d AND %[7]d`,
		decks, k, deck, r.first/decks, last/decks, r.first, last)
}

// loadAll loads rows in parts that a transaction can hold, and has the server
// look at its table.
func loadAll(ctx context.Context, p backend, r rows, into table) error {
	const part = 100_000
	for end := r.first + r.n; r.first < end; r.first += part {
		r.n = min(part, end-r.first)
		if err := p.load(ctx, r, into); err != nil {
			return err
		}
	}
	return p.tidy(ctx, into)
}
