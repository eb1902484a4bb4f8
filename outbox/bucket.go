package outbox

import (
	"crypto/sha256"
	"encoding/binary"
)

const (
	// DefaultBuckets is how many buckets a new outbox has.
	DefaultBuckets = 64
	// MaxBuckets is the largest number of buckets.
	MaxBuckets = 1024
)

// ValidBuckets reports whether an outbox may have n buckets: a power of two.
func ValidBuckets(n int) bool { return n > 0 && n <= MaxBuckets && n&(n-1) == 0 }

// Bucket returns the bucket of a key that is not empty: the first two bytes of
// the SHA-256 of its UTF-8 form, big-endian, modulo the number of buckets, a
// power of two. Every database and language computes the same.
func Bucket(key string, buckets int) int {
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint16(sum[:2])) % buckets
}
