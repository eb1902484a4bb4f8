//go:build !chaos

package mutant

// Active reports whether the bug of that name is planted in this process. In
// this build none ever is.
func Active(string) bool { return false }
