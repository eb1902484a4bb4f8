package rabbitmq

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
)

// secure returns the TLS configuration of an amqps DSN. The server's certificate is
// always verified.
func secure(dsn config.DSN) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: dsn.Text("server_name", "")}
	if ca := dsn.Text("ca", ""); ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("option ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("option ca: %s holds no certificate in PEM form", ca)
		}
	}
	cert, key := dsn.Text("cert", ""), dsn.Text("key", "")
	switch {
	case cert == "" && key == "":
		return cfg, nil
	case cert == "" || key == "":
		return nil, &waycli.Error{Kind: waycli.Usage, Err: errors.New("the options cert and key belong together"), Hint: "give both or none"}
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("options cert and key: %w", err)
	}
	cfg.Certificates = []tls.Certificate{pair}
	return cfg, nil
}
