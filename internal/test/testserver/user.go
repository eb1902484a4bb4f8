package testserver

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// servant returns the user that runs a server: for root the first of names that
// this system knows, since PostgreSQL, MariaDB and PgBouncer refuse to run as root,
// for any other caller nil, which is the caller.
func servant(names ...string) (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range append(names, "nobody") {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("none of the users %q exists to run the server; root may not", append(names, "nobody"))
}

// own gives paths to as; nil leaves them as they are.
func own(as *syscall.Credential, paths ...string) error {
	if as == nil {
		return nil
	}
	for _, path := range paths {
		if err := os.Chown(path, int(as.Uid), int(as.Gid)); err != nil {
			return err
		}
	}
	return nil
}
