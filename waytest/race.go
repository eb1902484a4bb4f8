//go:build race

package waytest

// raced says that the race detector runs, which makes everything slow.
const raced = true
