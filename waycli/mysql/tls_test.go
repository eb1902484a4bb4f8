package mysql_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/test/testserver"
	"github.com/waybill-go/waybill/waycli"
	"github.com/waybill-go/waybill/waycli/mysql"
	"github.com/waybill-go/waybill/waymysql"
)

// certificate writes a self-signed certificate for 127.0.0.1 and its key to a place
// that a server of another user can read.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "waybill test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "waybill-tls-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", signed), write("key.pem", "PRIVATE KEY", secret)
}

func TestTLSIsWhatTheDSNSays(t *testing.T) {
	cert, key := certificate(t)
	server := testserver.StartMariaDB(t, map[string]string{"ssl_cert": cert, "ssl_key": key})
	for options, want := range map[string]struct{ err, hint string }{
		"":             {}, // prefers
		"?tls=require": {},
		"?tls=verify-full&tls_ca=" + url.QueryEscape(cert): {},
		"?tls=verify-full": {"certificate", "an issuer in the file of the option tls_ca"},
		"?tls=disable":     {},
	} {
		dsn := config.MustParseDSN(server.URL() + options)
		db, err := mysql.Open(t.Context(), dsn, waymysql.Config{})
		if want.err != "" {
			var told *waycli.Error
			if err == nil || !strings.Contains(err.Error(), want.err) || errors.Is(err, waybill.ErrUnavailable) || !errors.As(err, &told) || !strings.Contains(told.Hint, want.hint) {
				t.Errorf("%s: %v, want an error about the %s, with the hint %q", dsn, err, want.err, want.hint)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		var name, cipher string
		if err := db.Pool().QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher); err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
		if encrypted := cipher != ""; encrypted != (options != "?tls=disable") {
			t.Errorf("%s: encrypted is %t", dsn, encrypted)
		}
		if err := db.Close(); err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
	}
	// The certificate is for the address, and for no name.
	dsn := config.MustParseDSN(strings.Replace(server.URL(), "127.0.0.1", "localhost", 1) + "?tls=verify-full&tls_ca=" + url.QueryEscape(cert))
	if _, err := mysql.Open(t.Context(), dsn, waymysql.Config{}); err == nil || !strings.Contains(err.Error(), "not valid for any names") {
		t.Errorf("%s: %v, want that the certificate is another's", dsn, err)
	}
}
