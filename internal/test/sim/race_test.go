//go:build race

package sim

func init() { slow = 10 } // there is one thread, and no race to find
