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
	if lacksTransactions(err) && !errors.Is(err, errPoolMode) {
		return fmt.Errorf("%w: %w", err, errPoolMode)
	}
	if unavailable(err) && !errors.Is(err, waybill.ErrUnavailable) {
		return fmt.Errorf("%w: %w", waybill.ErrUnavailable, err)
	}
	return err
}

var errPoolMode = errors.New("waybill needs transactions: set pool_mode of PgBouncer to transaction or session")

// lacksTransactions reports whether a PgBouncer in statement mode has refused a transaction.
// The code is that of all of its errors.
func lacksTransactions(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && strings.Contains(server.Message, "statement pooling mode")
}

// translateOpen is translate for the first connection: a login that is refused there
// is more likely a mistake than an outage.
func translateOpen(err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && !serverUnavailable(server) {
		return err
	}
	return translate(err)
}

// unavailable reports whether err says that the database cannot be reached, or
// not for writing, whatever is asked of it.
func unavailable(err error) bool {
	var server *pgconn.PgError
	var connect *pgconn.ConnectError // also of a login that is refused, as while its password is changed
	if errors.As(err, &server) && !errors.As(err, &connect) {
		return serverUnavailable(server)
	}
	if errors.Is(err, context.Canceled) {
		return false
	}
	var network net.Error
	return errors.As(err, &network) || errors.As(err, &connect) || errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || pgconn.Timeout(err)
}

// serverUnavailable is unavailable for the server's own errors.
func serverUnavailable(err *pgconn.PgError) bool {
	switch code := err.Code; {
	case lacksTransactions(err):
		return false
	case strings.HasPrefix(code, "08"), strings.HasPrefix(code, "57P"), strings.HasPrefix(code, "58"):
		return true // connection, shutdown or start, input and output
	case code == "53300", code == "53100", code == "53200": // too many connections, disk full, out of memory
		return true
	case code == "25006", code == "25P03", code == "25P04": // read-only, idle or transaction timeout
		return true
	case code == "57014", code == lockNotAvailable: // statement_timeout or a cancel from outside, lock_timeout
		return true
	case err.Routine == "RevalidateCachedQuery": // a column has another type: the client prepares the statement anew
		return true
	}
	return rolledBack(err)
}

// lockNotAvailable is the code of lock_timeout.
const lockNotAvailable = "55P03"

// hasCode reports whether err is the server's, with a code that begins so.
func hasCode(err error, code string) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && strings.HasPrefix(server.Code, code)
}

// rolledBack reports whether the server ended a transaction for a deadlock or a
// serialization failure.
func rolledBack(err error) bool { return hasCode(err, "40") }

// refusesRecord reports whether an insert failed because of its values. Any other
// failure is the database's, and would hit every other record as well.
func refusesRecord(err error) bool {
	return hasCode(err, "22") || hasCode(err, "23") || hasCode(err, "54")
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
