package postgres

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
)

// explain returns the error of opening dsn in one line, with a hint.
func explain(dsn config.DSN, err error) error {
	e := &waycli.Error{Kind: waycli.Usage, Err: errors.New(words(err))}
	if errors.Is(err, waybill.ErrUnavailable) {
		e.Kind, e.Err = waycli.Unavailable, fmt.Errorf("%w: %s", waybill.ErrUnavailable, words(err))
	}
	var server *pgconn.PgError
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		e.Hint = "the server's certificate must be in date, for that host, and by an issuer in the file of the option sslrootcert"
	case !errors.As(err, &server):
	case server.Code == "3D000":
		e.Hint = fmt.Sprintf("waybill creates tables, not databases: `createdb %s` does, or CREATE DATABASE", cmp.Or(dsn.Path, dsn.User))
	case server.Code == "53300":
		e.Hint = "it has no connection left for this one: raise max_connections, or the limit of the role or database, or have other programs take fewer"
	case server.Code == "28P01", server.Code == "28000":
		e.Hint = "check user and password (a special character in them is written as %xx)"
	}
	return e
}

// words returns the text of the server or the network. The client's text has a line
// for each address and try, often a repeated one.
func words(err error) string {
	var (
		server    *pgconn.PgError
		untrusted *tls.CertificateVerificationError
		lookup    *net.DNSError
		network   *net.OpError
	)
	switch {
	case errors.As(err, &server):
		return fmt.Sprintf("%s (SQLSTATE %s)", server.Message, server.Code)
	case errors.As(err, &untrusted):
		return untrusted.Error()
	case errors.As(err, &lookup):
		return lookup.Error()
	case errors.As(err, &network):
		return network.Error()
	}
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "waypg: "), waybill.ErrUnavailable.Error()+": ")
	return strings.Join(strings.Fields(text), " ")
}
