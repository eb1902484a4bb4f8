package mysql_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli/mysql"
)

func TestConfigSaysAllThatTheDSNSays(t *testing.T) {
	type want struct {
		address, user, password, database string
		timeout                           time.Duration
		encrypts, verifies, falls         bool
	}
	for dsn, want := range map[string]want{
		"mysql://app@db/shop":                                {"db:3306", "app", "", "shop", 10 * time.Second, true, false, true},
		"mariadb://app:pw@db:3307/shop?connect_timeout=3s":   {"db:3307", "app", "pw", "shop", 3 * time.Second, true, false, true},
		"mysql://a%40b:p%3A%2F%3F%40%25%27@[::1]:6000/s%20p": {"[::1]:6000", "a@b", "p:/?@%'", "s p", 10 * time.Second, true, false, true},
		"mysql://app:@[fe80::1]/shop?tls=disable":            {"[fe80::1]:3306", "app", "", "shop", 10 * time.Second, false, false, false},
		"mysql://app@db/shop?tls=require":                    {"db:3306", "app", "", "shop", 10 * time.Second, true, false, false},
		"mysql://app@db/shop?tls=verify-full":                {"db:3306", "app", "", "shop", 10 * time.Second, true, true, false},
	} {
		cfg, err := mysql.Config(config.MustParseDSN(dsn))
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		got := struct {
			address, user, password, database string
			timeout                           time.Duration
			encrypts, verifies, falls         bool
		}{cfg.Addr, cfg.User, cfg.Passwd, cfg.DBName, cfg.Timeout, cfg.TLS != nil, cfg.TLS != nil && !cfg.TLS.InsecureSkipVerify, cfg.AllowFallbackToPlaintext}
		if got != want {
			t.Errorf("%s: got %+v, want %+v", dsn, got, want)
		}
		if cfg.Net != "tcp" || !cfg.InterpolateParams {
			t.Errorf("%s: network %q, interpolates %t", dsn, cfg.Net, cfg.InterpolateParams)
		}
		if want.verifies && cfg.TLS.ServerName != "db" {
			t.Errorf("%s: the certificate must be that of %q", dsn, cfg.TLS.ServerName)
		}
	}
}

func TestConfigRefusesWhatCannotWork(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dsn, want := range map[string]string{
		"mysql://db/shop":                                                 "names no user",
		"mysql://app:s3cr3t@db":                                           "names no database",
		"mysql://app:s3cr3t@db/shop?tls_ca=ca.pem":                        "tls_ca counts with tls=verify-full only, and tls is prefer",
		"mysql://app:s3cr3t@db/shop?tls=require&tls_ca=ca.pem":            "tls_ca counts with tls=verify-full only, and tls is require",
		"mysql://app:s3cr3t@db/shop?tls=verify-full&tls_ca=nowhere.pem":   "option tls_ca: open nowhere.pem: no such file",
		"mysql://app:s3cr3t@db/shop?tls=verify-full&tls_ca=" + empty + "": "holds no certificate",
	} {
		_, err := mysql.Config(config.MustParseDSN(dsn))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: got %v, want an error with %q", dsn, err, want)
		}
	}
}
