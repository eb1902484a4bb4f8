//go:build unix

package waysqlite

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/waybill-go/waybill"
)

// fileLock is held until unlock or the end of the process, however it ends.
type fileLock struct{ f *os.File }

// lockFile takes the lock at path or fails with waybill.ErrRelayRunning.
func lockFile(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("relay lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		_ = f.Close()
		return nil, fmt.Errorf("%w (lock file %s)", waybill.ErrRelayRunning, path)
	case err != nil:
		_ = f.Close()
		return nil, fmt.Errorf("relay lock %s: %w", path, err)
	}
	return &fileLock{f}, nil
}

func (l *fileLock) unlock() { _ = l.f.Close() }
