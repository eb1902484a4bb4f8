package main

import (
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
)

// profiles are the files that bench writes profiles to. Empty means none.
type profiles struct{ cpu, allocs string }

// start begins the profiles. The returned function writes them.
func (p profiles) start() (stop func() error, err error) {
	var cpu, allocs *os.File
	if p.cpu != "" {
		if cpu, err = os.Create(p.cpu); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(cpu); err != nil {
			return nil, errors.Join(err, cpu.Close())
		}
	}
	if p.allocs != "" {
		if allocs, err = os.Create(p.allocs); err != nil {
			pprof.StopCPUProfile()
			return nil, err
		}
	}
	return func() (err error) {
		if cpu != nil {
			pprof.StopCPUProfile()
			err = cpu.Close()
		}
		if allocs != nil {
			runtime.GC() // completes the profile
			err = errors.Join(err, pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close())
		}
		return err
	}, nil
}
