package mysql

import (
	"crypto/tls"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
)

// explain returns the error of opening dsn in one line, with a hint.
func explain(dsn config.DSN, err error) error {
	e := &waycli.Error{Kind: waycli.Usage, Err: errors.New(words(err))}
	if unavailable(err) {
		e.Kind, e.Err = waycli.Unavailable, fmt.Errorf("%w: %s", waybill.ErrUnavailable, words(err))
	}
	var server *mysql.MySQLError
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.Is(err, mysql.ErrNoTLS):
		e.Hint = "turn it on there, or set the option tls to prefer or disable"
	case errors.As(err, &untrusted):
		e.Hint = "the server's certificate must be in date, for that host, and by an issuer in the file of the option tls_ca"
	case !errors.As(err, &server):
	case server.Number == 1193:
		e.Err = fmt.Errorf("%w: %s", errUnknownVariable, words(err))
	case server.Number == 1049:
		e.Hint = fmt.Sprintf("waybill creates tables, not databases: CREATE DATABASE `%s` does", dsn.Path)
	case server.Number == 1045, server.Number == 1698:
		e.Hint = "check user and password (a special character in them is written as %xx)"
	case server.Number == 1040, server.Number == 1203, server.Number == 1226:
		e.Hint = "it has no connection left for this one: raise max_connections, or the limit of the user, or have other programs take fewer"
	case server.Number == 1044:
		e.Hint = fmt.Sprintf("GRANT ALL ON `%s`.* TO that user, or CREATE DATABASE if it is not there", dsn.Path)
	case server.Number == 1130:
		e.Hint = "the server lets no user in from this machine: see the host part of CREATE USER 'user'@'host'"
	}
	return e
}

// unavailable reports whether the server could not be reached, or has no room.
func unavailable(err error) bool {
	var server *mysql.MySQLError
	if errors.As(err, &server) {
		switch server.Number {
		case 1040, 1203, 1053, 1152, 1129: // too many connections, of a user; shutdown, aborted, blocked host
			return true
		}
		return errors.Is(err, waybill.ErrUnavailable)
	}
	var untrusted *tls.CertificateVerificationError
	if errors.Is(err, mysql.ErrNoTLS) || errors.As(err, &untrusted) {
		return false
	}
	var network net.Error
	return errors.Is(err, waybill.ErrUnavailable) || errors.Is(err, errSilent) || errors.As(err, &network) ||
		errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// words returns the text of the server or the network, without the client's prefix.
func words(err error) string {
	var (
		server    *mysql.MySQLError
		untrusted *tls.CertificateVerificationError
		lookup    *net.DNSError
		network   *net.OpError
	)
	switch {
	case errors.As(err, &server):
		return fmt.Sprintf("%s (error %d)", server.Message, server.Number)
	case errors.Is(err, mysql.ErrNoTLS):
		return "the server does not encrypt"
	case errors.As(err, &untrusted):
		return untrusted.Error()
	case errors.Is(err, errSilent):
		return errSilent.Error()
	case errors.As(err, &lookup):
		return lookup.Error()
	case errors.As(err, &network):
		return network.Error()
	case errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, driver.ErrBadConn), errors.Is(err, io.EOF):
		return "the connection was closed: what answers may be no MySQL"
	}
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "waymysql: "), waybill.ErrUnavailable.Error()+": ")
	return strings.Join(strings.Fields(text), " ")
}
