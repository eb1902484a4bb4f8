package waypg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
)

// translate gives the client's errors waybill's meaning, by code.
func translate(err error) error {
	if unavailable(err) && !errors.Is(err, waybill.ErrUnavailable) {
		return fmt.Errorf("%w: %w", waybill.ErrUnavailable, err)
	}
	return err
}

// unavailable reports whether err says that the database cannot be reached, or
// not for writing, whatever is asked of it.
func unavailable(err error) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		switch code := server.Code; {
		case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57P"), strings.HasPrefix(code, "58"):
			return true // connection, shutdown or start, input and output
		case code == "53300", code == "53100", code == "53200": // too many connections, disk full, out of memory
			return true
		case code == "25006", code == "25P03", code == "25P04": // read-only, idle or transaction timeout
			return true
		case code == "57014", code == lockNotAvailable: // statement_timeout or a cancel from outside, lock_timeout
			return true
		}
		return rolledBack(err)
	}
	if errors.Is(err, context.Canceled) {
		return false
	}
	var network net.Error
	var connect *pgconn.ConnectError
	return errors.As(err, &network) || errors.As(err, &connect) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || pgconn.Timeout(err)
}

// rolledBack reports whether the server ended a transaction for a deadlock or a
// serialization failure.
func rolledBack(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && strings.HasPrefix(server.Code, "40")
}

// refusesRecord reports whether an insert failed because of its values. Any other
// failure is the database's, and would hit every other record as well.
func refusesRecord(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (strings.HasPrefix(server.Code, "22") || strings.HasPrefix(server.Code, "23") || strings.HasPrefix(server.Code, "54"))
}

// notCommitted reports whether a failed COMMIT is known to have had no effect:
// the server said so, and not while it was going away.
func notCommitted(err error) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		idle := server.Code == "25P03" // it was ended while it waited for a statement
		return idle || server.SeverityUnlocalized != "FATAL" && server.SeverityUnlocalized != "PANIC"
	}
	// pgx calls a connection that ended while it waited for the answer closed, and
	// safe to retry, as if nothing had been sent.
	return pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, pgx.ErrTxCommitRollback)
}
