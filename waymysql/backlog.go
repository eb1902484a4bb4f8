package waymysql

import "sync"

// A backlog remembers the buckets of which the last claim left rows behind. While
// there are many, looking into each of them costs more than reading them; these
// are taken to have rows. Where that is wrong, because another relay was there, a
// claim finds out by reading nothing.
type backlog struct {
	mu   sync.Mutex
	left map[int16]bool
}

// note says whether a claim has left rows of a bucket behind.
func (b *backlog) note(bucket int16, left bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !left:
		delete(b.left, bucket)
	case b.left == nil:
		b.left = map[int16]bool{bucket: true}
	default:
		b.left[bucket] = true
	}
}

func (b *backlog) has(bucket int16) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left[bucket]
}

func (b *backlog) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.left)
}
