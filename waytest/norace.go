//go:build !race

package waytest

const raced = false
