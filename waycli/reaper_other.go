//go:build !unix

package waycli

import "os/exec"

// A reaper does nothing here: commands outlive a process that is killed.
type reaper struct{}

func startReaper() (*reaper, error) { return &reaper{}, nil }

func (*reaper) begun(*exec.Cmd) (ended func()) { return func() {} }

// Close implements io.Closer.
func (*reaper) Close() error { return nil }
