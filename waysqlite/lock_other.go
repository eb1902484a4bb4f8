//go:build !unix

package waysqlite

import "errors"

type fileLock struct{}

func lockFile(string) (*fileLock, error) {
	return nil, errors.New("waysqlite: relaying a SQLite file needs flock, which this system does not have")
}

func (*fileLock) unlock() {}
