package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/waycli"
)

const (
	defaultTimeout = 10 * time.Second
	// usualConnections is the connection limit of a process unless it can use more.
	usualConnections = 10
)

// ConnString returns a postgres:// DSN as pgxpool reads it. It holds the
// password.
func ConnString(dsn config.DSN) (string, error) { return connString(dsn, usualConnections) }

// listenString returns the DSN of the option listen as pgx reads it; empty
// without one. It holds the password.
func listenString(dsn config.DSN) (string, error) {
	listen, ok := dsn.DSN("listen")
	if !ok {
		return "", nil
	}
	text, err := connString(listen, usualConnections)
	if err != nil {
		return "", fmt.Errorf("option listen: %w", err)
	}
	return text, nil
}

func connString(dsn config.DSN, connections int) (string, error) {
	options := url.Values{
		"sslmode":          {dsn.Enum("sslmode", "prefer")},
		"connect_timeout":  {strconv.Itoa(int(dsn.Duration("connect_timeout", defaultTimeout).Seconds()))},
		"application_name": {"waybill"},
		"pool_max_conns":   {strconv.Itoa(max(connections, usualConnections))},
	}
	for _, name := range []string{"sslrootcert", "sslcert", "sslkey"} {
		file := dsn.Text(name, "")
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil { // the client's error has the whole DSN around it
			return "", fmt.Errorf("option %s: %w", name, err)
		}
		options.Set(name, file)
	}
	if options.Has("sslcert") != options.Has("sslkey") {
		return "", &waycli.Error{Kind: waycli.Usage, Err: errors.New("the options sslcert and sslkey belong together"), Hint: "give both or none"}
	}
	u := url.URL{Scheme: "postgres", Host: dsn.Host, Path: "/" + cmp.Or(dsn.Path, dsn.User), RawQuery: options.Encode()}
	switch {
	case dsn.HasPassword():
		u.User = url.UserPassword(dsn.User, dsn.RevealPassword())
	case dsn.User != "":
		u.User = url.User(dsn.User)
	}
	if _, _, err := net.SplitHostPort(dsn.Host); err != nil {
		u.Host += ":5432" // or the environment's port would be used
	}
	return u.String(), nil
}
