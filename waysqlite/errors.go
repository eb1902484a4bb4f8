package waysqlite

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/waybill-go/waybill"
)

// translate gives the driver's errors waybill's meaning, by code.
func translate(err error) error {
	switch code(err) {
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_IOERR, lib.SQLITE_CANTOPEN, lib.SQLITE_FULL, lib.SQLITE_NOMEM, lib.SQLITE_PROTOCOL:
		return fmt.Errorf("%w: %w", waybill.ErrUnavailable, err)
	case lib.SQLITE_READONLY, lib.SQLITE_PERM:
		return fmt.Errorf("%w: not allowed to write the database file, or FILE-wal and FILE-shm in its directory: %w", waybill.ErrUnavailable, err)
	case lib.SQLITE_CORRUPT:
		return fmt.Errorf("the database file is damaged: %w", err)
	case lib.SQLITE_NOTADB:
		return fmt.Errorf("the file is not a SQLite database: %w", err)
	}
	return err
}

// code returns the primary result code, or 0.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// refusesRecord reports whether an insert failed because of its record. Any other
// error is the file's fault, and every other record would fail as well.
func refusesRecord(err error) bool {
	switch code(err) {
	case lib.SQLITE_CONSTRAINT, lib.SQLITE_TOOBIG, lib.SQLITE_MISMATCH, lib.SQLITE_RANGE:
		return true
	}
	return false
}

// notCommitted reports whether a failed COMMIT is known to have had no effect:
// the driver then rolls back. Of anything else the result is not known.
func notCommitted(err error) bool {
	switch code(err) {
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_CONSTRAINT, lib.SQLITE_FULL, lib.SQLITE_NOMEM, lib.SQLITE_INTERRUPT, lib.SQLITE_ERROR:
		return true
	}
	return false
}
