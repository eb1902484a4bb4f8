package waycli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/config"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/worker"
)

// A Service is what App.Bus builds on: the configuration, and the databases that the commands
// open by it. It is valid during that call and in the functions it returns; its methods are for that one
// goroutine.
type Service struct {
	s       *session
	parts   []part // of Go
	sharing bool   // handlers use the connections of the configured database
}

// A part is something that `run` runs.
type part struct {
	name string
	run  func(context.Context) error
}

// Config returns the configuration, which must not be changed.
func (v *Service) Config() *config.Config { return v.s.cfg }

// Log returns the log of the command.
func (v *Service) Log() *slog.Logger { return v.s.log }

// Outbox returns the configuration of an outbox: its transports and routes, and Observer. The
// caller may add to it. An error means that the file does not say where messages go.
func (v *Service) Outbox() (outbox.Config, error) {
	cfg, err := addressedOutbox(v.s.cfg, "")
	cfg.Observer = v.Observer()
	return cfg, err
}

// Observer returns the observer of the command: its log, its traces, its history, which begins
// with the first call of Database, and its metrics where it has an admin listener.
func (v *Service) Observer() waybill.Observer { return v.s.observer() }

// Database returns the configured database, which the commands open and close, with
// connections for the handlers of all workers that are to run. The packages of the drivers
// return it with its own type: postgres.DB, mysql.DB and sqlite.DB.
func (v *Service) Database(ctx context.Context) (Database, error) {
	db, err := v.s.database(ctx)
	v.sharing = err == nil
	return db, err
}

// DatabaseAs returns the Database of svc as the type T of a driver, which is to be named
// in the error about another one. It is for the packages of drivers.
func DatabaseAs[T Database](ctx context.Context, svc *Service, named string) (db T, err error) {
	opened, err := svc.Database(ctx)
	if err != nil {
		return db, err
	}
	db, ok := opened.(T)
	if !ok {
		return db, &Error{Usage, fmt.Errorf("the service wants a database that is %s; the configured one is %s", named, svc.Config().Database), "change the DSN, or the program"}
	}
	return db, nil
}

// Go adds a part of the program that `run` runs beside relay and workers, such as an HTTP
// server. It is to return when its context ends. An error stops the others. Go panics on a
// name that is empty or taken; "relay", "workers" and "schedules" are.
func (v *Service) Go(name string, run func(context.Context) error) {
	if name == "" || slices.Contains([]string{relayPart, workersPart, schedulesPart}, name) || v.part(name) != nil {
		panic(fmt.Errorf("a part of the service is named %q: that is empty or taken", name))
	}
	v.parts = append(v.parts, part{name, run})
}

// serveDrain is how long Serve waits for the requests that have begun.
const serveDrain = 10 * time.Second

// Serve adds an HTTP server as a part, as Go does. It listens at the Addr of the server when
// the part runs. When that is to end it takes no new requests, and waits up to ten seconds for
// those begun.
func (v *Service) Serve(name string, server *http.Server) {
	v.Go(name, func(ctx context.Context) error {
		listener, err := net.Listen("tcp", server.Addr)
		if err != nil {
			return err
		}
		return serve(ctx, listener, server, serveDrain)
	})
}

// part returns the run of a part that Go has added, or nil.
func (v *Service) part(name string) func(context.Context) error {
	for _, p := range v.parts {
		if p.name == name {
			return p.run
		}
	}
	return nil
}

// inbox returns the inbox that workers prune, if handlers have theirs in db.
func (v *Service) inbox(db Database) (worker.Inbox, bool) {
	in, ok := db.(worker.Inbox)
	return in, ok && v != nil && v.sharing
}
