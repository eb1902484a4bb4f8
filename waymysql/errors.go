package waymysql

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
)

// Error numbers of the server, from its manual.
const (
	errDuplicate      = 1062
	errNullColumn     = 1048
	errNoSavepoint    = 1305 // ER_SP_DOES_NOT_EXIST, also for savepoints
	errLockWait       = 1205
	errDeadlock       = 1213
	errNoTable        = 1146
	errNoPrivilege    = 1227
	errPacket         = 1153
	errCheck          = 3819
	errCheckMariaDB   = 4025
	errReadOnly       = 1290
	errReadOnlyTx     = 1792
	errKilled         = 1927
	errIdleTimeout    = 4031
	errStatementLimit = 1969
	errChanged        = 1020 // of a row that this transaction's snapshot has as it was before
)

// translate gives the client's errors waybill's meaning.
func translate(err error) error {
	if unavailable(err) && !errors.Is(err, waybill.ErrUnavailable) {
		return fmt.Errorf("%w: %w", waybill.ErrUnavailable, err)
	}
	return err
}

// translateOpen is translate for the first connection: a login that is refused there
// is more likely a mistake than an outage.
func translateOpen(err error) error {
	if refusesLogin(err) {
		return err
	}
	return translate(err)
}

// refusesLogin reports whether the server, or this side for the server's certificate, has
// refused the login.
func refusesLogin(err error) bool {
	var untrusted *tls.CertificateVerificationError
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return errors.As(err, &untrusted) || errors.Is(err, mysql.ErrNoTLS)
	}
	// Password, host, expired password, locked account, no TLS.
	return slices.Contains([]uint16{1045, 1698, 1129, 1130, 1820, 1862, 3118, 4151, 3159}, server.Number)
}

// unavailable reports whether err says that the database cannot be reached, or
// not for writing, independently of the statement.
func unavailable(err error) bool {
	if refusesLogin(err) { // as while its password is changed, or with a certificate that has expired
		return true
	}
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		switch server.Number {
		case 1040, 1203, 1226: // too many connections, in all, of a user, by a limit
			return true
		case 1021, 1026, 1037, 1038, 1041, 1114: // disk or memory full
			return true
		case errReadOnly, errReadOnlyTx, 1836: // read-only
			return true
		case errLockWait, errDeadlock, errChanged, 3572:
			return true
		}
		// Below 1000 are those of its files, such as 3 for a temporary one on a full disk.
		return server.Number < 1000 || interrupted(server)
	}
	if errors.Is(err, context.Canceled) {
		return false
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || lostInHandshake(err)
}

// interrupted reports whether the server ended the session or the statement, which may have
// been a COMMIT that was about to succeed.
func interrupted(err *mysql.MySQLError) bool {
	switch err.Number {
	case 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184: // shutdown, broken connections
		return true
	case 1317, errKilled, errStatementLimit, errIdleTimeout, 3024: // interrupted, killed, timed out
		return true
	}
	return false
}

// lostInHandshake reports whether a connection was lost at a write of its handshake. The
// driver says driver.ErrBadConn at all later writes; there it returns an error of its own
// that it does not export (errBadConnNoWrite of go-sql-driver/mysql, errors.go).
func lostInHandshake(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if err.Error() == "bad connection" {
			return true
		}
	}
	return false
}

// is reports whether err is the server's error of that number.
func is(err error, number uint16) bool {
	var server *mysql.MySQLError
	return errors.As(err, &server) && server.Number == number
}

// isMade reports whether a statement of a migration failed because it has been
// run before: the table, procedure, column, index, constraint or row is there, or
// gone.
func isMade(err error) bool {
	made := []uint16{1050, 1304, 1060, 1061, 1826, 3822, errDuplicate}
	gone := []uint16{1051, 1091}
	return slices.ContainsFunc(append(made, gone...), func(number uint16) bool { return is(err, number) })
}

// refusesRecord reports whether an insert failed because of its values. Any other
// error is the database's fault, and would hit every other record as well.
func refusesRecord(err error) bool {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return errors.Is(err, mysql.ErrPktTooLarge)
	}
	class := string(server.SQLState[:2])
	return class == "22" || class == "23" || server.Number == errCheck || server.Number == errCheckMariaDB || server.Number == errPacket
}

// notCommitted reports whether a block that ends with COMMIT is known to have failed
// before it: the server said so, or the block was never sent.
func notCommitted(err error) bool {
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		return !interrupted(server) // on one server no COMMIT waits for a lock, or needs room for a row
	}
	return err == errNoGate || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrTxDone)
}
