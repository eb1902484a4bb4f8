package waycli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/internal/suggest"
)

// queueScheme is the scheme of transports that are tables.
const queueScheme = "queue"

// inDatabase reports whether dsn is a queue of the database itself, where a
// dispatch writes to it at once.
func inDatabase(dsn, database config.DSN) bool {
	if dsn.Scheme != queueScheme {
		return false
	}
	other, ok := dsn.DSN("database")
	return !ok || other.Equal(database)
}

// inProcess reports whether dsn names a transport inside the process that
// sends to it.
func inProcess(dsn config.DSN) bool { return dsn.Scheme == "memory" || dsn.Scheme == "sync" }

// ownTransport reports whether dsn names a transport without a broker.
func ownTransport(dsn config.DSN) bool { return dsn.Scheme == queueScheme || inProcess(dsn) }

// transport returns the configured transport of that name.
func (s *session) transport(name string) (config.Transport, error) {
	cfg, err := s.config()
	if err != nil {
		return config.Transport{}, err
	}
	t, ok := cfg.Transports[name]
	if !ok {
		return t, &Error{Usage, fmt.Errorf("unknown transport %q", name), suggest.Hint(name, transportNames(cfg), "transports")}
	}
	return t, nil
}

func transportNames(cfg *config.Config) []string {
	return slices.Sorted(maps.Keys(cfg.Transports))
}

// queue opens the named transport, which must have no broker.
func (s *session) queue(ctx context.Context, name string) (Queue, error) {
	t, err := s.transport(name)
	if err != nil {
		return nil, err
	}
	if inProcess(t.DSN) {
		return nil, &Error{Usage, fmt.Errorf("transport %q is %s: it lives inside the process that sends to it, and no other process can reach it", name, t.DSN),
			"relay and consume it inside the application, or make it queue://" + name}
	}
	var db Database
	if other, ok := t.DSN.DSN("database"); ok {
		db, err = s.open(ctx, other, fmt.Sprintf("transport %q", name))
	} else {
		db, err = s.database(ctx)
	}
	if err != nil {
		return nil, err
	}
	return db.Queue(t.DSN)
}
