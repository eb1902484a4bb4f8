package mysql

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
)

// Config returns a mysql:// DSN as its client reads it. It holds the password.
func Config(dsn config.DSN) (*mysql.Config, error) {
	switch {
	case dsn.User == "":
		return nil, wrong(fmt.Errorf("%s names no user", dsn), "write mysql://user:password@host/database")
	case dsn.Path == "":
		return nil, wrong(fmt.Errorf("%s names no database", dsn), "write mysql://user:password@host/database")
	}
	cfg := mysql.NewConfig()
	cfg.User, cfg.DBName = dsn.User, dsn.Path
	if dsn.HasPassword() {
		cfg.Passwd = dsn.RevealPassword()
	}
	cfg.Net, cfg.Addr = "tcp", dsn.Host
	if _, _, err := net.SplitHostPort(dsn.Host); err != nil {
		cfg.Addr += ":3306"
	}
	cfg.Timeout = dsn.Duration("connect_timeout", defaultTimeout)
	cfg.InterpolateParams = true // a statement is one round trip
	cfg.ConnectionAttributes = "program_name:waybill"
	cfg.Logger = &mysql.NopLogger{} // the errors hold all relevant text
	return cfg, encrypt(cfg, dsn)
}

// encrypt sets TLS according to the options tls and tls_ca. The values have the
// meaning of PostgreSQL's sslmode.
func encrypt(cfg *mysql.Config, dsn config.DSN) error {
	mode, file := dsn.Enum("tls", "prefer"), dsn.Text("tls_ca", "")
	if file != "" && mode != "verify-full" {
		return wrong(fmt.Errorf("the option tls_ca counts with tls=verify-full only, and tls is %s", mode), "set tls=verify-full, or leave tls_ca out")
	}
	switch mode {
	case "prefer":
		cfg.TLS, cfg.AllowFallbackToPlaintext = &tls.Config{InsecureSkipVerify: true}, true
	case "require":
		cfg.TLS = &tls.Config{InsecureSkipVerify: true}
	case "verify-full":
		host, _, err := net.SplitHostPort(cfg.Addr)
		if err != nil {
			return err
		}
		cfg.TLS = &tls.Config{ServerName: strings.Trim(host, "[]")}
		if file == "" {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return wrong(fmt.Errorf("option tls_ca: %w", err), "")
		}
		cfg.TLS.RootCAs = x509.NewCertPool()
		if !cfg.TLS.RootCAs.AppendCertsFromPEM(text) {
			return wrong(fmt.Errorf("option tls_ca: %s holds no certificate", file), "it takes a file in PEM form")
		}
	}
	return nil
}

func wrong(err error, hint string) error {
	return &waycli.Error{Kind: waycli.Usage, Err: err, Hint: hint}
}

var errSilent = errors.New("the server does not answer in time")
